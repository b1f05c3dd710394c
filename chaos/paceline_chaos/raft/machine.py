"""What the bed replicates: the controllers' sessions, and a list that commands append to.

A list tells more than a counter: what was lost, what is there twice, and in which order.
"""

import base64
from typing import Any
from zlib import crc32

import orjson

from paceline_controller.state import Machine
from paceline_controller.state.commands import AnyCommand, Envelope, OpenSession, Tick
from paceline_controller.state.outcome import Outcome


class ListMachine(Machine):
    """The real machine, of which one command appends: its sessions and deadlines are the real."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[str] = []
        self.mark = 0
        """Of all values in their order."""

    def _dispatch(self, command: AnyCommand, outcome: Outcome) -> None:
        if not isinstance(command, Tick):
            super()._dispatch(command, outcome)
            return
        for value in command.alive:
            self._append(value)
        outcome.result["count"] = len(self.values)

    def _append(self, value: str) -> None:
        self.values.append(value)
        self.mark = crc32(value.encode(), self.mark)

    def snapshot(self) -> bytes:
        state = base64.b64encode(super().snapshot()).decode()
        return orjson.dumps({"state": state, "values": self.values})

    def restore(self, snapshot: bytes) -> None:
        document = orjson.loads(snapshot)
        super().restore(base64.b64decode(document["state"]))
        self.values, self.mark = [], 0
        for value in document["values"]:
            self._append(value)


def append_command(value: str, **envelope: Any) -> dict[str, Any]:
    """The command that appends a value."""
    return Tick(alive=(value,)).to_json() | Envelope(**envelope).to_json()


def open_command(**envelope: Any) -> dict[str, Any]:
    """The command that opens a session."""
    return OpenSession().to_json() | Envelope(**envelope).to_json()
