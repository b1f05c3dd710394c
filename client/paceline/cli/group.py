"""`paceline group`: consumer groups."""

import click

from paceline.cli import group_offsets


@click.group("group")
def command() -> None:
    """Show and move consumer groups."""


group_offsets.add_to(command)
