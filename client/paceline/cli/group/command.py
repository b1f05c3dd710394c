"""`paceline group`: consumer groups."""

import click

from paceline.cli.group import offsets, settings


@click.group("group")
def command() -> None:
    """Show, change and move consumer groups."""


settings.add_to(command)
offsets.add_to(command)
