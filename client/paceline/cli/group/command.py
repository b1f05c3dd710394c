"""`paceline group`: consumer groups."""

import click

from paceline.cli.group import offsets, settings
from paceline.cli.needs import Group


@click.group("group", cls=Group)
def command() -> None:
    """Show, change and move consumer groups."""


settings.add_to(command)
offsets.add_to(command)
