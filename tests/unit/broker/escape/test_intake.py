"""R36: what comes over an escape connection is taken from brokers of this cluster only, and only if
it is what an acting master may send."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed
from tests.support.escape.scene import OTHER, RETRY, SECRET, TOPICS, Scene, a_scene
from tests.support.service.fakes import GROUP, until

from paceline.errors import PacelineError, PeerError, UnauthenticatedError
from paceline.records.encode import encode_batch
from paceline.records.header import (
    BATCH_BYTES_MAX,
    DERIVED_PROPERTIES_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    Cause,
    Kind,
)
from paceline.types import Incarnation
from paceline.wire import properties as names
from paceline.wire.messages import Proof
from paceline_broker.escape.connection import EscapeConnection
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.seals import Seal
from paceline_broker.replication.messages import (
    PREFIX_BYTES,
    Refused,
    frame,
    parse_answer,
    parse_message,
    parse_prefix,
)
from paceline_broker.service.escape import wire
from paceline_broker.service.escape.notes import SentNote
from paceline_broker.service.escape.wire import EscapeTold

SEALED_ID = list(TOPICS).index("sealed") + 1
RETRY_ID = list(TOPICS).index(RETRY) + 1
MARK = {names.ESCAPED_FROM: "g1:1a40:0", names.TIMER_OUT_MS: "5"}


def a_batch(**changes: Any) -> bytes:
    arguments: dict[str, Any] = {
        "properties": [MARK],
        "born_unix_ms": 5,
        "topic_id": 1,
        "queue_id": 0,
        "flags": Cause.ESCAPED,
        **changes,
    }
    return encode_batch([b"x"], **arguments)


async def a_connection(scene: Scene) -> EscapeConnection:
    return await scene.connect(scene.view().groups[OTHER])


async def test_what_an_acting_master_may_send_is_stored_and_confirmed() -> None:
    async with a_scene() as scene:
        connection = await a_connection(scene)
        assert await connection.send([a_batch(), a_batch(queue_id=1)]) == (None, None)
        assert await connection.send([a_batch(topic_id=RETRY_ID)]) == (None,)
        assert len(scene.escaped()) == 3
        assert scene.there.log.confirm == scene.there.log.end
        connection.close()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"flags": 0}, "BAD_REQUEST"),
        ({"flags": Cause.DELAYED}, "BAD_REQUEST"),
        ({"flags": Cause.ESCAPED | 256}, "BAD_REQUEST"),
        ({"sources": [7]}, "BAD_REQUEST"),
        ({"due_unix_ms": [7]}, "BAD_REQUEST"),
        ({"kind": Kind.DELAY, "due_unix_ms": [7]}, "BAD_REQUEST"),
        ({"kind": Kind.HALF}, "BAD_REQUEST"),
        ({"producer_id": 9, "base_sequence": 0}, "BAD_REQUEST"),
        ({"properties": None}, "BAD_REQUEST"),
        ({"properties": [{**MARK, names.ESCAPED_FROM: "nonsense"}]}, "BAD_REQUEST"),
        ({"properties": [{**MARK, names.ESCAPED_FROM: "g3:1:0"}]}, "FORBIDDEN"),
        ({"properties": [{**MARK, names.TIMER_OUT_MS: "soon"}]}, "BAD_REQUEST"),
        ({"topic_id": 99}, "TOPIC_NOT_FOUND"),
        ({"queue_id": 2}, "QUEUE_NOT_FOUND"),
        ({"topic_id": SEALED_ID}, "NO_PERMISSION"),
    ],
    ids=str,
)
async def test_anything_else_is_refused_and_the_rest_is_stored(
    changes: dict[str, Any], code: str
) -> None:
    async with a_scene() as scene:
        connection = await a_connection(scene)
        assert await connection.send([a_batch(**changes), a_batch()]) == (code, None)
        assert len(scene.escaped()) == 1
        connection.close()


async def test_a_queue_that_the_log_has_sealed_takes_nothing() -> None:
    """Whatever the view says: a topic found again in a broker's store is no static topic."""
    async with a_scene() as scene:
        connection = await a_connection(scene)
        scene.there.role.projections.seals.add(queue_key(1, 1), Seal(0, 0))
        assert await connection.send([a_batch(queue_id=1), a_batch()]) == ("QUEUE_SEALED", None)
        connection.close()


async def test_damaged_bytes_are_refused() -> None:
    async with a_scene() as scene:
        connection = await a_connection(scene)
        batch = bytearray(a_batch())
        batch[-1] ^= 1
        assert await connection.send([bytes(batch)]) == ("CORRUPT_LOG",)
        assert scene.escaped() == []
        connection.close()


async def test_properties_may_be_as_long_as_what_brokers_add_makes_them() -> None:
    async with a_scene() as scene:
        connection = await a_connection(scene)
        long = {**MARK, "mine": "x" * PROPERTIES_BYTES_MAX}
        assert await connection.send([a_batch(properties=[long])]) == (None,)
        connection.close()
    too_long = {**MARK, "mine": "x" * DERIVED_PROPERTIES_BYTES_MAX}
    with pytest.raises(PacelineError):
        a_batch(properties=[too_long])


async def test_a_broker_that_is_no_open_master_takes_nothing() -> None:
    async with a_scene() as scene:
        connection = await a_connection(scene)
        scene.there.role.writer().is_open = False
        assert await connection.send([a_batch()]) == ("NOT_YET_AVAILABLE",)
        scene.there.role.become_replica()
        assert await connection.send([a_batch()]) == ("NOT_MASTER",)
        assert scene.escaped() == []
        connection.close()


async def test_an_acting_master_of_the_own_group_may_only_tell() -> None:
    async with a_scene() as scene:
        group = scene.view().groups[OTHER]
        own = await EscapeConnection.open(scene.sender(OTHER), group)
        assert await own.send([a_batch()]) == ("FORBIDDEN",)
        assert await own.tell(EscapeTold(notes=(), epochs=())) is None
        own.close()
        other = await EscapeConnection.open(scene.sender(GROUP), group)
        with pytest.raises(PeerError):
            await other.tell(EscapeTold(notes=(SentNote(1, 1, 1, 1),), epochs=()))
        other.close()


# -- who is it ----------------------------------------------------------------------------------


async def test_who_does_not_hold_the_secret_is_given_nothing_and_gives_nothing() -> None:
    async with a_scene() as scene:
        scene.secret = b"x" * 32
        with pytest.raises(UnauthenticatedError):  # the peer's proof is wrong to him as well
            await a_connection(scene)
        assert scene.escaped() == []


@pytest.mark.parametrize("sealed_by", [b"another secret", SECRET], ids=["stranger", "no proof"])
async def test_a_sender_without_the_secret_is_closed(sealed_by: bytes) -> None:
    async with a_scene() as scene:
        hello = changed(scene.sender().hello, is_sealed=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.port)
        writer.write(hello.encode())
        size = parse_prefix(await reader.readexactly(PREFIX_BYTES), size_bytes_max=4096)
        challenge = parse_answer(await reader.readexactly(size), wire.EscapeChallenge)
        seals, right = (
            hello.seals(secret, peer_nonce=challenge.nonce, is_dialer=True)
            for secret in (sealed_by, SECRET)
        )
        assert seals is not None
        assert right is not None
        messages = wire.EscapeMessages(sizes_bytes=(len(a_batch()),)).encode()
        proof = wire.EscapeProof(proof=Proof(b"p" * 32)).encode()
        for content in (proof, messages + a_batch()):
            writer.write(seals.outgoing.record([content]))
        answer = bytearray(await asyncio.wait_for(reader.read(), 5))
        refused = right.incoming.take_record(answer, size_bytes_max=4096)
        assert refused is not None
        assert parse_message(refused[PREFIX_BYTES:], Refused).code == (
            "UNAUTHENTICATED" if sealed_by == SECRET else "PEER"
        )
        assert scene.escaped() == []
        writer.close()


async def test_a_sender_that_goes_on_before_the_challenge_or_without_seals_is_closed() -> None:
    """What came before the seals began could be anybody's."""
    async with a_scene() as scene:
        for is_sealed in (False, True):
            hello = changed(scene.sender().hello, is_sealed=is_sealed)
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.port)
            proof = wire.EscapeProof(proof=Proof(b"p" * 32)).encode()
            writer.write(hello.encode() + (proof if is_sealed else b""))
            answer = await asyncio.wait_for(reader.read(), 5)
            refused = parse_message(answer[PREFIX_BYTES:], Refused)
            assert ("wait" if is_sealed else "authenticate") in refused.detail
            writer.close()


async def test_another_broker_at_the_address_of_the_master_is_given_nothing() -> None:
    async with a_scene() as scene:
        group = scene.view().groups[OTHER]
        with pytest.raises(PeerError, match="answers, not the master"):
            await scene.connect(replace(group, master_incarnation=Incarnation(2)))


async def test_a_sender_of_another_cluster_is_refused() -> None:
    async with a_scene() as scene:
        sender = scene.sender()
        sender = replace(sender, hello=changed(sender.hello, cluster_id="another"))
        with pytest.raises(PeerError, match="OTHER_CLUSTER"):
            await EscapeConnection.open(sender, scene.view().groups[OTHER])


@pytest.mark.parametrize(
    "request_document",
    [
        {"kind": "escape_messages", "sizes_bytes": []},
        {"kind": "escape_messages", "sizes_bytes": [7]},
        {"kind": "escape_messages", "sizes_bytes": [104.0]},
        {"kind": "escape_messages", "sizes_bytes": [BATCH_BYTES_MAX] * 3},
        {"kind": "escape_messages", "sizes_bytes": [104] * 1000},
        {"kind": "escape_messages"},
        {"kind": "escape_told", "notes": [[1, 2, 3]], "epochs": []},
        {"kind": "escape_told", "notes": [[1, 2, 3, -4]], "epochs": []},
        {"kind": "escape_told", "notes": [[1, 2, 3, 4]] * 1001, "epochs": []},
        {"kind": "escape_told", "notes": [], "epochs": ["1"]},
        {"kind": "escape_told", "notes": "all", "epochs": []},
        {"kind": "other"},
    ],
    ids=lambda document: str(document)[:60],
)
async def test_malformed_requests_close_the_connection(request_document: dict[str, Any]) -> None:
    async with a_scene() as scene:
        connection = await a_connection(scene)
        receiver = connection._receiver
        assert receiver._seals is not None
        receiver._writer.write(receiver._seals.outgoing.record([frame(request_document)]))
        # Closed with something unread, the other side may be told of a reset before it reads.
        with pytest.raises((PeerError, ConnectionError), match=r"refused|closed|reset"):
            await connection._receiver.hear(wire.EscapeAnswer)
        connection.close()


async def test_a_second_request_before_the_answer_closes() -> None:
    async with a_scene() as scene:
        scene.there.log.is_automatic = False
        connection = await a_connection(scene)
        for _ in range(2):
            sizes = wire.EscapeMessages(sizes_bytes=(len(a_batch()),))
            connection._receiver.say(sizes, followed_by=[a_batch()])
        with pytest.raises((PeerError, ConnectionError)):
            await connection._receiver.hear(wire.EscapeAnswer)
        connection.close()
        await until(lambda: len(scene.escaped()) == 1)


Mangle = Callable[[bytes], bytes]


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"kind":1}', b"\xff"], ids=repr)
def test_any_bytes_are_a_message_or_an_error_of_the_peer(body: bytes) -> None:
    for kind in (wire.EscapeHello, wire.EscapeChallenge, wire.EscapeProof, wire.EscapeAnswer):
        with pytest.raises(PeerError):
            parse_message(body, kind)
    with pytest.raises(PeerError):
        wire.parse_request(body)
