"""docs/CLI.md says something of every command."""

from collections.abc import Iterator
from pathlib import Path

import click

from paceline.cli.main import command

PAGE = (Path(__file__).parents[3] / "docs" / "CLI.md").read_text()


def leaves(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    """The names of each command that has no commands of its own."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, *names, name)
        else:
            yield (*names, name)


def test_every_command_is_on_the_page() -> None:
    headings = [line.replace(",", " ").split() for line in PAGE.splitlines() if line[:3] == "## "]

    def is_told(names: tuple[str, ...]) -> bool:
        return f"paceline {' '.join(names)}" in PAGE or any(
            set(names) <= {word.rstrip(":") for word in words} for words in headings
        )

    assert [names for names in leaves(command) if not is_told(names)] == []
