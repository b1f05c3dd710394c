"""What runs leave on the disk: a folder for each, without the nodes' data if nothing was wrong."""

import shutil
from pathlib import Path

from paceline.errors import ConfigError


def said_of_interrupt(folder: Path) -> str:
    """The last words after Ctrl-C."""
    return f"stopped; what there is stands in {folder}"


def make_folder(folder: Path) -> None:
    """Where a run is to leave something, before it begins. ConfigError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be made: {error.strerror}; choose another one"
        ) from error


def fresh(output: Path, name: str) -> Path:
    """A path in `output`, which is made, where nothing is yet: `name`, or `name` with a number."""
    make_folder(output)
    number = 1
    while (folder := output / (name if number == 1 else f"{name}.{number}")).exists():
        number += 1
    return folder


def drop_data(folder: Path) -> None:
    """Keep logs and configurations of a run; the rest is large and proves nothing more."""
    for entry in (folder / "data").iterdir():
        if entry.is_dir() and entry.name != "logs":
            shutil.rmtree(entry)
