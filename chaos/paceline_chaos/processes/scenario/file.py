"""Scenario files: read, checked as a whole, before anything is started."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from paceline.errors import BadRequestError, ConfigError
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


def scenario_files() -> dict[str, Traversable]:
    """Name -> file of the scenarios that come with paceline."""
    folder = resources.files("paceline_chaos") / "scenarios"
    found = {
        entry.name.removesuffix(".toml"): entry
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    }
    return dict(sorted(found.items()))


def load_scenarios(wanted: str) -> list[tuple[Scenario, Path]]:
    """A scenario by name, all of them, or one in a file of the caller's."""
    known = scenario_files()
    if wanted == "all":
        chosen = {name: Path(str(entry)) for name, entry in known.items()}
    elif wanted in known:
        chosen = {wanted: Path(str(known[wanted]))}
    elif wanted.endswith(".toml") and Path(wanted).is_file():
        chosen = {Path(wanted).stem: Path(wanted)}
    else:
        raise BadRequestError(
            f"there is no scenario {wanted!r}; known: {', '.join(known)}, all, or a TOML file"
        )
    return [(read_scenario(path), path) for path in chosen.values()]
