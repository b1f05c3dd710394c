"""Pure: the version of paceline, as pyproject.toml has it."""

VERSION = "0.1.0"
