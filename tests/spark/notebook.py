"""Run a script of cells ("# %%") as a notebook does.

    python -m tests.spark.notebook SCRIPT ADDRESS

One cell after another inside a running loop, where `await` stands alone; there is no `__file__`,
and the command line is the kernel's own. ADDRESS takes the place of `make up`'s.
"""

import ast
import asyncio
import inspect
import re
import sys
import types
from pathlib import Path

from tests.support.process.examples import ADDRESS_IN_DOCUMENTS


def cells(text: str) -> list[str]:
    """The code of each cell, but those of prose."""
    _, *parts = re.split(r"^# %%", text, flags=re.MULTILINE)
    return [part for part in parts if not part.startswith(" [markdown]")]


async def run(text: str) -> None:
    """As a kernel: what a cell defines is there for the next one."""
    notebook = types.ModuleType("__main__")
    sys.modules["__main__"] = notebook
    sys.modules["ipykernel"] = types.ModuleType("ipykernel")
    sys.argv = ["ipykernel_launcher.py", "-f", "kernel.json"]
    for number, cell in enumerate(cells(text), 1):
        code = compile(cell, f"<cell {number}>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, vars(notebook))
        if inspect.isawaitable(done):
            await done


if __name__ == "__main__":
    script, address = sys.argv[1:]
    asyncio.run(run(Path(script).read_text().replace(ADDRESS_IN_DOCUMENTS, address)))
