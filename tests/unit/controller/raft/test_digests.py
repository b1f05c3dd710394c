"""Who differs from most controllers stops, and nobody else (INV-10)."""

import pytest
from tests.support.raft.single import C1, C2, C3

from paceline.errors import PeerError
from paceline.types import ControllerId
from paceline_controller.raft.digests import INDICES_MAX, Digests
from paceline_controller.raft.peers.frames import encode_message, parse_message

C4 = ControllerId("c4")
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
VOTERS = {C1, C2, C3}


def digests(**said: bytes) -> Digests:
    found = Digests(C1)
    for name, digest in said.items():
        found.note(ControllerId(name), 64, digest)
    return found


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"c1": A, "c2": A, "c3": A}, (False, [])),
        ({"c1": A, "c2": B}, (False, [C2])),  # one against one: nobody knows
        ({"c1": A, "c2": B, "c3": B}, (True, [C2, C3])),
        ({"c1": A, "c2": A, "c3": B}, (False, [C3])),
        ({"c1": A, "c2": B, "c3": C}, (False, [C2, C3])),
        ({"c1": A, "c2": B, "c4": B}, (False, [C2])),  # a learner has no say
        ({"c2": B, "c3": B}, (False, [])),  # not there yet
    ],
)
def test_only_a_majority_of_voters_can_tell(
    said: dict[str, bytes], expected: tuple[bool, list[ControllerId]]
) -> None:
    assert digests(**said).deviants(64, VOTERS) == expected


def test_other_indices_say_nothing() -> None:
    found = digests(c1=A)
    found.note(C2, 128, B)
    found.note(C3, 128, B)

    assert found.deviants(64, VOTERS) == (False, [])


def test_after_a_snapshot_the_own_past_says_nothing() -> None:
    found = digests(c1=A, c2=B, c3=B)
    found.forget_own()

    assert found.deviants(64, VOTERS) == (False, [])
    assert found.latest() is None


def test_old_indices_are_forgotten() -> None:
    found = Digests(C1)
    for index in range(INDICES_MAX + 5):
        found.note(C1, index, A)
        found.note(C2, index, B)

    assert found.deviants(0, VOTERS) == (False, [])
    assert found.latest() == (INDICES_MAX + 4, A)


def test_a_digest_survives_its_frame() -> None:
    message = {"type": "digest", "index": 640, "digest": A}

    assert parse_message(encode_message(message)) == message
    with pytest.raises(PeerError):
        parse_message(encode_message(message)[:-1])
