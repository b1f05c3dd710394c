"""`paceline controller ...`: what is shown and asked, and the exit codes."""

from typing import Any

import orjson
import pytest
from tests.unit.client.cli.conftest import run_command

from paceline.admin.controllers import Controllers
from paceline.errors import CommandRefusedError

STATUS: dict[str, Any] = {
    "controller_id": "c1",
    "role": "leader",
    "leader": "c1",
    "term": 4,
    "commit_index": 1200,
    "applied_index": 1200,
    "log_length": 100,
    "generation": 2,
    "sync": {"count": 9, "p50_ms": 1, "p99_ms": 5, "max_ms": 7},
    "snapshot_age_ms": None,
    "sessions": 3,
    "digest": "d",
    "members": [],
}
MEMBERS: dict[str, Any] = {
    "generation": 2,
    "committed_generation": 2,
    "leaving": None,
    "waits_for": None,
    "members": [
        {
            "controller_id": "c1",
            "raft": "h:1",
            "client": "h:2",
            "is_voter": True,
            "is_linked": True,
            "lag_entries": None,
            "silent_ms": None,
        }
    ],
}


class Asked:
    """Stands in for the cluster; `calls` of the admin client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.members = dict(MEMBERS)
        self.statuses: dict[str, Any] = {"h:2": STATUS, "h:4": None}
        monkeypatch.setattr("paceline.cli.cluster.controller.open_cluster", self._open)
        for name in ("all", "members"):
            monkeypatch.setattr(Controllers, name, self._answers(name))
        monkeypatch.setattr(Controllers, "add", lambda _, *a, **k: self._add(*a, **k))
        monkeypatch.setattr(Controllers, "remove", lambda _, *a: self._remove(*a))
        monkeypatch.setattr(
            Controllers, "transfer_leadership", lambda _, to=None: self._transfer(to)
        )

    def _answers(self, name: str) -> Any:
        async def answer(_: Controllers, **_asked: Any) -> Any:
            return self.statuses if name == "all" else self.members

        return answer

    async def _add(self, name: str, **details: Any) -> int:
        self.calls.append(("add", name, details))
        return 2

    async def _remove(self, name: str) -> int:
        self.calls.append(("remove", name))
        return 2

    async def _transfer(self, to: str | None = None) -> dict[str, Any]:
        self.calls.append(("transfer", to))
        return {"leader": "c2", "leader_address": "h:4", "term": 5, "elapsed_ms": 12}

    def _open(self, connect: object) -> Any:
        return _Opened()


class _Opened:
    async def __aenter__(self) -> list[str]:
        return ["h:2"]

    async def __aexit__(self, *_: object) -> None:
        return


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def run_json(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    outcome = run_command("controller", *arguments, "--json", bootstrap="h:2")
    assert outcome.exit_code == exit_code, outcome.stderr
    document: dict[str, Any] = orjson.loads(outcome.stdout)
    return document


def test_status_has_a_row_for_each_controller(asked: Asked) -> None:
    document = run_json("status")

    assert document["is_led"] is True
    assert document["controllers"][0] == {"address": "h:2", **STATUS}
    assert document["controllers"][1]["role"] is None
    shown = run_command("controller", "status", bootstrap="h:2").stdout
    assert "1/5/7" in shown
    assert "no answer" in shown


def test_status_fails_when_nobody_leads(asked: Asked) -> None:
    asked.statuses = {"h:2": {**STATUS, "role": "follower"}}

    assert run_json("status", exit_code=1)["is_led"] is False


def test_transfer_names_who_leads_now(asked: Asked) -> None:
    assert run_json("transfer", "--to", "c2") == {
        "leader": "c2",
        "leader_address": "h:4",
        "term": 5,
        "elapsed_ms": 12,
    }
    assert asked.calls == [("transfer", "c2")]


def test_members_are_listed_and_changed(asked: Asked) -> None:
    at = ("--raft", "h:7", "--client", "h:8")

    assert run_json("members", "list") == MEMBERS
    assert run_json("members", "add", "c4", *at) == MEMBERS
    assert run_json("members", "replace", "c1", "c4", *at) == MEMBERS
    assert run_json("members", "remove", "c1") == MEMBERS
    assert [call[:2] for call in asked.calls] == [("add", "c4"), ("add", "c4"), ("remove", "c1")]
    assert asked.calls[0][2] == {"raft": "h:7", "client": "h:8"}
    assert asked.calls[1][2] == {"raft": "h:7", "client": "h:8", "replaces": "c1"}


def test_a_change_that_does_not_end_in_time_says_what_it_waits_for(asked: Asked) -> None:
    asked.members = {**MEMBERS, "leaving": "c1", "waits_for": "c4 catches up"}

    outcome = run_command("controller", "members", "remove", "c1", "--wait-s", "1", bootstrap="h:2")

    assert outcome.exit_code == 1
    assert "c4 catches up" in outcome.stdout


def test_a_refusal_is_one_sentence(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: Controllers, to: str | None = None) -> None:
        raise CommandRefusedError("c9 is no other voter", reason="TRANSFER_REFUSED")

    monkeypatch.setattr(Controllers, "transfer_leadership", refuse)

    outcome = run_command("controller", "transfer", "--to", "c9", bootstrap="h:2")

    assert (outcome.exit_code, outcome.stderr) == (1, "paceline: c9 is no other voter\n")
