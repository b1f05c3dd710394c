"""`python -m tests.interpreters`: `make check` and a sample of worlds with each other Python that
this machine has, one of each minor version, in an environment of its own (`.venv-3.13`).

`make test` runs everything on one Python. asyncio, its transports and the types of the standard
library change with each minor version: what that breaks is seen here.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MINOR_MIN = 11
MINOR_MAX = 19
"""No name of an interpreter is looked for beyond this."""
WORLDS = "0-3"
_QUESTION = "import ensurepip, ssl, sys, venv; print(sys.version_info[1])"


def candidates() -> Iterator[Path]:
    """Files that may be interpreters: of PATH, then of what pyenv and uv have installed."""
    names = [f"python3.{minor}" for minor in range(MINOR_MIN, MINOR_MAX + 1)]
    home = Path.home()
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    for installed in (pyenv / "versions", home / ".local/share/uv/python"):
        folders += sorted(installed.glob("*/bin"), reverse=True)
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                yield folder / name


def minor_of(python: Path) -> int | None:
    """Its minor version; None if it does not run (as pyenv's placeholders) or makes no venv."""
    try:
        asked = subprocess.run(
            [python, "-c", _QUESTION], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return None
    return int(asked.stdout) if asked.returncode == 0 else None


def other_interpreters() -> dict[int, Path]:
    """By minor version, from the oldest on, the first that works; not the one that runs this."""
    found: dict[int, Path] = {}
    for python in candidates():
        minor = minor_of(python)
        if minor is not None and minor >= MINOR_MIN and minor != sys.version_info[1]:
            found.setdefault(minor, python)
    return dict(sorted(found.items()))


def main() -> int:
    found = other_interpreters()
    own = f"3.{sys.version_info[1]}"
    others = ", ".join(f"3.{minor}" for minor in found) or "none"
    sys.stdout.write(f"make test runs on Python {own}; others found here: {others}\n")
    for minor, python in found.items():
        sys.stdout.write(f"\nPython 3.{minor} ({python})\n")
        sys.stdout.flush()
        # What the make that runs this was told is not for the one below.
        environment = {name: text for name, text in os.environ.items() if name != "MAKEFLAGS"}
        arguments = (f"VENV=.venv-3.{minor}", f"PYTHON={python}", f"WORLDS={WORLDS}")
        made = subprocess.run(
            ["make", "--no-print-directory", *arguments, "check", "worlds"],
            cwd=ROOT,
            env=environment,
            check=False,
        )
        if made.returncode != 0:
            sys.stdout.write(f"FAILED with Python 3.{minor}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
