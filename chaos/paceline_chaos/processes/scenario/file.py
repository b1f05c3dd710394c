"""Scenario files: read, checked as a whole, before anything is started."""

from pathlib import Path

from paceline.errors import ConfigError
from paceline_chaos.processes.scenario.scenario import Scenario, parse


def read_scenario(path: Path) -> Scenario:
    """The scenario in a TOML file. ConfigError names the file, the entry and its line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text, so it is no scenario") from error
    return parse(path.stem, text, source=str(path))
