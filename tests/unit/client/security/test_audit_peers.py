"""Whoever does not prove that he is a node is told of in the audit: once, then counted."""

from collections.abc import Iterator

import pytest
from tests.support.audit import FOLDER, kept_by, on_disk
from tests.support.controller.harness import eventually
from tests.support.rights import a_security

from paceline.errors import BadRequestError, UnauthenticatedError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import ManualClock
from paceline.security import audit_peers
from paceline.security.access import Access
from paceline.security.audit import RECORDS_PER_S
from paceline.security.audit_peers import SOURCES_MAX, RefusedPeers
from paceline.wire.users import Mode

ERROR = UnauthenticatedError("the peer does not hold this cluster's secret")


class Refusing:
    """A node that refuses peers."""

    def __init__(self, mode: Mode = Mode.ON) -> None:
        self.clock, self.disk = ManualClock(), MemoryDisk()
        self.access = Access(self.clock)
        self.access.apply(a_security(mode=mode))
        kept_by(self.access.audit, self.disk)
        self.peers = RefusedPeers(self.access)

    def refuse(self, source: str, count: int = 1, *, door: str = "raft") -> None:
        for _ in range(count):
            self.peers.refused(door, source, ERROR)

    def told(self) -> list[tuple[str, str, int]]:
        return [(row.door, row.source, row.times) for row in on_disk(self.disk, FOLDER)]


@pytest.fixture
def node() -> Iterator[Refusing]:
    made = Refusing()
    yield made
    made.peers.close()


async def test_the_first_refusal_is_told_at_once_with_who_where_and_why(node: Refusing) -> None:
    node.refuse("10.0.0.9")

    [row] = on_disk(node.disk, FOLDER)
    assert (row.user, row.source, row.door, row.call) == ("anonymous", "10.0.0.9", "raft", "raft")
    assert (row.decision, row.rule, row.outcome) == ("Deny", ERROR.message, "UNAUTHENTICATED")


async def test_a_flood_of_one_source_is_one_record_with_a_count_a_period(
    node: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_peers, "PERIOD_S", 0.02)
    node.refuse("10.0.0.9", 10_001)
    node.refuse("10.0.0.8", door="repair")
    await eventually(lambda: len(node.told()) == 3, "the period has ended")
    node.refuse("10.0.0.9", 7)
    await eventually(lambda: len(node.told()) == 4, "the next one has ended")
    await eventually(lambda: not node.peers._periods, "nothing is kept of whoever has stopped")

    assert node.told() == [
        ("raft", "10.0.0.9", 1),
        ("repair", "10.0.0.8", 1),
        ("raft", "10.0.0.9", 10_000),
        ("raft", "10.0.0.9", 7),
    ]


async def test_refusals_of_another_kind_are_told_at_once_too(node: Refusing) -> None:
    node.refuse("10.0.0.9", 3)
    node.peers.refused("raft", "10.0.0.9", BadRequestError("this port takes TLS only"))

    assert [row.outcome for row in on_disk(node.disk, FOLDER)] == ["UNAUTHENTICATED", "BAD_REQUEST"]


async def test_a_flood_of_many_sources_is_bounded_as_all_that_strangers_cause(
    node: Refusing,
) -> None:
    for number in range(2 * SOURCES_MAX):
        node.refuse(f"10.0.{number // 256}.{number % 256}", 3)

    assert len(node.told()) <= RECORDS_PER_S + 1
    assert len(node.peers._periods) <= SOURCES_MAX
    assert node.access.audit.dropped_count > 0


async def test_what_was_counted_is_told_when_the_node_stops(node: Refusing) -> None:
    node.refuse("10.0.0.9", 5)

    node.peers.close()

    assert node.told() == [("raft", "10.0.0.9", 1), ("raft", "10.0.0.9", 4)]


async def test_while_rights_are_off_nothing_is_told() -> None:
    node = Refusing(Mode.OFF)

    node.refuse("10.0.0.9", 5)

    assert node.told() == []
