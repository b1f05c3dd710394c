"""RocketMQ's protobuf messages as Python: `make stubs` writes them, `test_stubs` compares.

What protoc makes runs on its own version of the runtime, newer ones, and the next major one, so it
is made by an old one, in an environment of its own.
"""

import subprocess
import tempfile
import venv
from pathlib import Path

from tests.tidy.tree import GENERATED, ROOT

MAKER = "grpcio-tools==1.76.0"
"""Makes code for protobuf 6.31 to 7."""
ROOM = ROOT / "gateway"
STUBS = ROOT / GENERATED


def protos() -> list[str]:
    """The .proto files, as they import each other."""
    return sorted(str(path.relative_to(ROOM)) for path in STUBS.glob("*.proto"))


def protoc(python: str, *arguments: str) -> None:
    """Run the protoc that the environment of an interpreter has."""
    subprocess.run(
        [python, "-m", "grpc_tools.protoc", f"-I{ROOM}", *arguments, *protos()], check=True
    )


def main() -> None:
    """Write the modules and their types."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin/python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", MAKER], check=True)
        protoc(python, f"--python_out={ROOM}", f"--pyi_out={ROOM}")


if __name__ == "__main__":
    main()
