"""`paceline group`: consumer groups."""

import click

from paceline.cli import group_offsets, group_settings


@click.group("group")
def command() -> None:
    """Show, change and move consumer groups."""


group_settings.add_to(command)
group_offsets.add_to(command)
