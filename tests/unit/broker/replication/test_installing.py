"""When a replica takes its master's checkpoint, and what it believes of it (R14, R16)."""

import hashlib

import pytest
from msgspec.structs import replace
from tests.support.replication.replica import a_frame, a_replica, a_welcome

from paceline.errors import PeerError
from paceline.platform.ports import Buffer
from paceline.types import PhysicalOffset
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import Install, Welcome
from paceline_broker.replication.install import PIECE_BYTES, Reception, send_checkpoint
from paceline_broker.replication.messages import PREFIX_BYTES, parse_message
from paceline_broker.replication.replica.replica import Truncated, Welcomed

START, POSITION, CONFIRM = PhysicalOffset(800), PhysicalOffset(900), PhysicalOffset(950)


def an_install(
    *, start: int = START, position: int = POSITION, is_unclean: bool = False, size: int = 5
) -> Welcomed:
    """The logs of `a_replica` and its master part at 400."""
    welcome = a_welcome(start, is_unclean=is_unclean).welcome
    install = Install(position=PhysicalOffset(position), confirm=CONFIRM, size_bytes=size)
    return Welcomed(replace(welcome, install=install))


def test_a_replica_that_parts_below_the_masters_start_installs() -> None:
    replica = a_replica(confirm=400)

    ready = replica.step(an_install())

    assert (ready.truncate_to, ready.installs) == (START, True)
    assert replica.confirm == START
    assert replica.step(Truncated(START, START)).acknowledge is not None
    assert replica.step(a_frame(START)).append


def test_what_is_confirmed_here_and_nowhere_there_stops_the_replica() -> None:
    """R16: the logs part below what this replica knows as confirmed."""
    ready = a_replica(confirm=401).step(an_install())
    assert ready.stop is not None
    assert not ready.installs
    assert a_replica(confirm=401).step(an_install(is_unclean=True)).installs


@pytest.mark.parametrize(
    ("start", "position"),
    [(400, 900), (300, 900), (800, 799), (800, 951)],
    ids=["parts at the start", "parts above", "below the start", "above confirm"],
)
def test_an_install_that_is_not_needed_or_out_of_bounds_closes(start: int, position: int) -> None:
    """R14: log start <= position <= confirm."""
    ready = a_replica().step(an_install(start=start, position=position))
    assert ready.close is not None
    assert ready.truncate_to is None


def test_the_welcome_with_an_install_survives_the_wire() -> None:
    welcome = an_install().welcome
    assert parse_message(welcome.encode()[PREFIX_BYTES:], Welcome) == welcome


class Target:
    """What was written."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, piece: Buffer) -> None:
        self.content += bytes(piece)

    async def synced(self) -> None: ...

    def discard(self) -> None: ...


class Line:
    """A connection that keeps what is written; it goes after `pieces`."""

    def __init__(self, *, pieces: int = 1000) -> None:
        self.sent: list[bytes] = []
        self._pieces = pieces

    def write(self, buffers: list[Buffer]) -> None:
        self.sent.extend(bytes(buffer) for buffer in buffers)

    async def drained(self) -> bool:
        return len(self.sent) < self._pieces


def a_reception(size: int) -> tuple[Reception, Target]:
    target = Target()
    install = an_install(size=size).welcome.install
    assert install is not None
    return Reception(install, EpochTable(), target), target


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 3 * PIECE_BYTES + 7])
async def test_a_checkpoint_arrives_in_pieces_of_any_size(size: int) -> None:
    content, line = bytes(index % 251 for index in range(size)), Line()
    await send_checkpoint(line, content)
    stream = memoryview(b"".join(line.sent) + b"a frame")
    reception, target = a_reception(size)
    at = 0
    while not reception.is_complete:
        at += reception.take(stream[at : at + 100_003])

    assert target.content == content
    assert bytes(stream[at:]) == b"a frame", "what follows is not the checkpoint's"


def test_a_flipped_bit_is_found() -> None:
    reception, _ = a_reception(5)
    with pytest.raises(PeerError, match="hash"):
        reception.take(memoryview(b"hellp" + hashlib.sha256(b"hello").digest()))


async def test_sending_ends_with_the_connection() -> None:
    line = Line(pieces=1)
    await send_checkpoint(line, bytes(3 * PIECE_BYTES))
    assert len(line.sent) == 1
