"""Files generated from code: `make docs` writes them, `test_generated` compares."""

import importlib
import inspect
from pathlib import Path

from paceline.errors import BY_CODE, PacelineError, Retry
from paceline.platform.config import example_toml

ROOT = Path(__file__).parents[2]

_PROCESSES = ("broker", "controller")

_RETRY = {
    Retry.NEVER: "no",
    Retry.SAME_NODE: "same node, later",
    Retry.NEW_MASTER: "master or leader, after asking for routes",
}

_ERRORS_HEAD = """\
# Error codes

Generated from `client/paceline/errors.py` by `make docs`; a test compares. A code is a contract: it
is never renamed and never gets another meaning.

Over HTTP an error is a problem document (RFC 9457, `application/problem+json`), on a stream the
body of an error frame is the same document:

    {"type": "https://paceline.dev/errors/NOT_MASTER", "title": "Not master", "status": 421,
     "code": "NOT_MASTER", "detail": "...", "retry": "new_master", "definite": true, "master": null}

- `code` is for programs, `detail` for people. Members beyond the standard ones are details of the
  code, named below.
- `retry` says what may help: `never`, `same_node` (later, with back-off) or `new_master` (ask for
  routes first).
- `definite` says that a write which got this answer has certainly stored nothing. Only then may
  the same batch go to another queue, or be reported as not stored. After an indefinite answer the
  one safe thing is the same batch, byte for byte, on the same queue: the broker recognises it by
  producer id, epoch and sequence (R31, R32).
- A code that a client does not know counts as indefinite.

| code | status | retry | definite | meaning |
|---|---|---|---|---|
"""


def errors_document() -> str:
    """docs/protocol/errors.md."""
    rows = [_row(BY_CODE[code]) for code in sorted(BY_CODE)]
    return _ERRORS_HEAD + "\n".join(rows) + "\n"


def _row(error: type[PacelineError]) -> str:
    meaning = " ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split())
    if error is PacelineError:
        meaning = "A bug of the node that answers; its log has more."
    definite = "yes" if error.is_definite else "**no**"
    return (
        f"| {error.code} | {int(error.status)} | {_RETRY[error.retry]} | {definite} | {meaning} |"
    )


def documents() -> dict[Path, str]:
    """Every generated file with the content it must have."""
    return {
        ROOT / "docs/protocol/errors.md": errors_document(),
        **{ROOT / f"deploy/{process}.example.toml": _example(process) for process in _PROCESSES},
    }


def _example(process: str) -> str:
    module = importlib.import_module(f"paceline_{process}.config")
    title = f"Settings of one {process}: paceline-{process} --config FILE"
    return example_toml(getattr(module, f"{process.capitalize()}Config"), title=title)


def main() -> None:
    """Write what differs."""
    for path, content in documents().items():
        if not path.exists() or path.read_text() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


if __name__ == "__main__":
    main()
