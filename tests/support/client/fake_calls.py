"""Calls of the fake cluster: offsets, ends, and a coordinator of group members."""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from tests.support.client.fake_locks import FakeLocks

from paceline.errors import BY_CODE, BadRequestError, PacelineError
from paceline.records.encode import encode_batch
from paceline.records.header import parse_header
from paceline.types import TopicName
from paceline.wire import properties as names
from paceline.wire.calls.request import read_request
from paceline.wire.calls.table import CALLS

if TYPE_CHECKING:
    from tests.support.client.fake_broker import FakeBroker


JOINED_UNIX_MS = 1_000
"""When any group began to read any topic."""


class FakeGroupCalls:
    """Answers as docs/protocol/stream.md says; members live as long as the cluster."""

    def __init__(self) -> None:
        self.heartbeat_refusal: PacelineError | None = None
        self.members: dict[str, dict[str, dict[str, Any]]] = {}
        self.introduced: list[tuple[str, dict[str, Any]]] = []
        """Who said to which broker group who they are."""
        self.refuses_clients = False
        self.generation = 1
        self.changed = asyncio.Event()
        self.locks = FakeLocks()
        self.failures: list[PacelineError] = []
        """Raised one by one by the next calls that are no heartbeats."""
        self.times_asked: list[int] = []
        self.told_at_time = 0
        """What `times` tells as the offset of whatever moment."""
        self.ended: dict[str, str] = {}
        self.end_calls = 0
        self.put_off: set[str] = set()
        self.questions: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        self.told_start: int | None = None
        """What `ends` tells as first offset: retention is faster than the asker."""
        self.retry_times_max = 16
        self.send_back_code: str | None = None
        """Every message that is sent back is refused so."""
        self.dead: list[bytes] = []
        self.canned: dict[str, dict[str, Any]] = {}
        """Answers that the test gives itself, by call."""

    async def answer(self, broker: "FakeBroker", document: dict[str, Any]) -> dict[str, Any]:
        call = document["call"]
        request = read_request(CALLS[call], document)  # strictly, and with all defaults
        given = orjson.loads(msgspec.json.encode(msgspec.structs.asdict(request)))
        document = {"call": call}
        document |= {name: value for name, value in given.items() if value is not None}
        if call == "heartbeat":
            return await self._heartbeat(document)
        if call == "transaction_checks":
            return {"checks": await self._checks_of(document)}
        if call == "client":
            self.introduced.append((broker.group, document))
            if self.refuses_clients:
                raise BadRequestError("unknown call", field="call")
            return {}
        if self.failures:
            raise self.failures.pop(0)
        if call in self.canned:
            return self.canned[call]
        match call:
            case "offsets":
                rows = _rows(document) if "queues" in document else _all_rows(broker, document)
                return {"offsets": [self._committed(broker, document, row) for row in rows]}
            case "ends":
                return {"queues": [self._range(broker, row) for row in _rows(document)]}
            case "times":
                self.times_asked.append(document["unix_ms"])
                found = [self._range(broker, row) for row in _rows(document)]
                return {"queues": [{**row, "offset": self.told_at_time} for row in found]}
            case "resets":
                mine = [
                    generation
                    for (group, *_), (_, generation) in broker.log.offsets.items()
                    if group == document["group"]
                ]
                return {"resets": sum(mine)}
            case "commit":
                return self._commit(broker, document)
            case "reset":
                return {"group": document["group"], "queues": [self._reset(broker, document)]}
            case "send_back":
                messages = [self._send_back(broker, document, row) for row in document["messages"]]
                return {"messages": messages}
            case "lock" | "unlock":
                return self.locks.change(broker, document)
            case "leave":
                self.members.get(document["group"], {}).pop(document["client_id"], None)
                self._change()
                return {"generation": self.generation}
            case "end_transactions":
                return {"ends": self._end(document)}
        raise AssertionError(call)

    def ask_producers(self, question: dict[str, Any]) -> None:
        """The next producer that waits for checks gets it."""
        self.questions.append(question)
        self.asked.set()

    async def _checks_of(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        while not self.questions:
            self.asked.clear()
            await self.asked.wait()
        found, self.questions = self.questions, []
        return found

    def _end(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        """The first end counts (R34); what `put_off` names is put off once."""
        self.end_calls += 1
        rows = []
        for outcome, ids in (("COMMITTED", "commit"), ("ROLLED_BACK", "rollback")):
            for transaction_id in document[ids]:
                row = {"transaction_id": transaction_id, "code": None, "detail": None}
                if transaction_id in self.put_off:
                    self.put_off.discard(transaction_id)
                    rows.append({**row, "outcome": None, "code": "NOT_YET_AVAILABLE"})
                    continue
                known = self.ended.setdefault(transaction_id, outcome)
                code = None if known == outcome else "TRANSACTION_ENDED"
                rows.append({**row, "outcome": known, "code": code})
        return rows

    def drop(self, group: str, client_id: str) -> None:
        """As if a member had been silent for too long."""
        self.members[group].pop(client_id, None)
        self._change()

    def reset(self, broker: "FakeBroker", group: str, queue: tuple[int, int], offset: int) -> None:
        """As an operator's reset: a lower offset and a new generation."""
        _, generation = broker.log.offsets.get((group, *queue), (0, 0))
        broker.log.offsets[(group, *queue)] = (offset, generation + 1)

    def _reset(self, broker: "FakeBroker", document: dict[str, Any]) -> dict[str, Any]:
        """Of one queue."""
        [queue] = document["queues"]
        topic_id = broker.cluster.view.topics[document["topic"]].topic_id
        start, end = broker.log.start((topic_id, queue)), broker.log.end((topic_id, queue))
        named = {"first": start, "last": end}.get(document.get("to", ""), document.get("offset"))
        offset = self.told_at_time if named is None else min(max(named, start), end)
        self.reset(broker, document["group"], (topic_id, queue), offset)
        _, generation = broker.log.offsets[(document["group"], topic_id, queue)]
        return {
            "topic_id": topic_id,
            "queue": queue,
            "before": None,
            "offset": offset,
            "generation": generation,
            "code": None,
        }

    def _change(self) -> None:
        self.generation += 1
        self.changed.set()
        self.changed = asyncio.Event()

    async def _heartbeat(self, document: dict[str, Any]) -> dict[str, Any]:
        if self.heartbeat_refusal is not None:
            raise self.heartbeat_refusal
        members = self.members.setdefault(document["group"], {})
        told = {"topics": document["topics"], "owned": document["owned"]}
        if members.get(document["client_id"]) != told:
            members[document["client_id"]] = told
            self._change()
        if document["generation"] == self.generation:
            changed = self.changed
            try:
                async with asyncio.timeout(document["wait_ms"] / 1000):
                    await changed.wait()
            except TimeoutError:
                pass
        rows = [{"client_id": name, **member} for name, member in sorted(members.items())]
        return {
            "generation": self.generation,
            "interval_ms": 1_000,
            "members": rows,
            "inconsistent_topics": [],
        }

    def _key(self, broker: "FakeBroker", row: dict[str, Any]) -> tuple[int, int]:
        if "topic" in row:
            return broker.cluster.view.topics[row["topic"]].topic_id, row["queue"]
        return row["topic_id"], row["queue"]

    def _committed(
        self, broker: "FakeBroker", document: dict[str, Any], row: dict[str, Any]
    ) -> dict[str, Any]:
        topic_id, queue = self._key(broker, row)
        group, log = document["group"], broker.log
        offset, generation = log.offsets.get((group, topic_id, queue), (None, 0))
        joined = log.joined.get((group, topic_id))
        return {
            "topic_id": topic_id,
            "queue": queue,
            "offset": offset,
            "generation": generation,
            "code": None,
            "joined_offset": None if joined is None else joined.get(queue, 0),
            "joined_unix_ms": None if joined is None else JOINED_UNIX_MS,
        }

    def _range(self, broker: "FakeBroker", row: dict[str, Any]) -> dict[str, Any]:
        topic_id, queue = self._key(broker, row)
        start = broker.log.start((topic_id, queue))
        return {
            "topic_id": topic_id,
            "queue": queue,
            "start": start if self.told_start is None else self.told_start,
            "end": broker.log.end((topic_id, queue)),
        }

    def _commit(self, broker: "FakeBroker", document: dict[str, Any]) -> dict[str, Any]:
        rows = []
        for row in _rows(document):
            topic_id, queue = self._key(broker, row)
            key = (document["group"], topic_id, queue)
            offset, generation = broker.log.offsets.get(key, (-1, 0))
            code = None
            if self.locks.is_fenced(broker, document["group"], row, topic_id << 16 | queue):
                code = "LOCK_FENCED"
            elif row.get("generation", generation) < generation or row["offset"] < offset:
                code = "OFFSET_MOVED_BACK"
            elif row["offset"] > broker.log.end((topic_id, queue)):
                code = "OFFSET_OUT_OF_RANGE"
            else:
                offset = row["offset"]
                broker.log.commit(key, offset, generation)
            rows.append(
                {
                    "topic_id": topic_id,
                    "queue": queue,
                    "offset": None if offset < 0 else offset,
                    "generation": generation,
                    "code": code,
                }
            )
        if all(row["code"] for row in rows):
            raise BY_CODE[str(rows[0]["code"])]("refused", offsets=rows)
        return {"offsets": rows}

    def _send_back(
        self, broker: "FakeBroker", document: dict[str, Any], row: dict[str, Any]
    ) -> dict[str, Any]:
        """A retry is due at once here; nothing is deduplicated."""
        answer = {
            **{name: row[name] for name in ("topic_id", "queue", "offset")},
            "code": self.send_back_code,
            "outcome": None,
            "reconsume_times": None,
            "due_unix_ms": None,
            "message_id": None,
            "duplicate": False,
        }
        if self.send_back_code is not None:
            return answer
        group, topics = document["group"], broker.cluster.view.topics
        retry = topics[TopicName(f"%RETRY%{group}")]
        [topic] = [name for name, view in topics.items() if view.topic_id == row["topic_id"]]
        record = broker.log.record((row["topic_id"], row["queue"]), row["offset"])
        times = int(record.properties.get(names.RECONSUME_TIMES, "0"))
        if row["delay_level"] < 0 or times >= document.get(
            "max_reconsume_times", self.retry_times_max
        ):
            self.dead.append(record.body)
            return {**answer, "outcome": "dead", "reconsume_times": times}
        properties = {
            names.RETRY_TOPIC: topic,
            **record.properties,
            names.RECONSUME_TIMES: str(times + 1),
        }
        batch = encode_batch(
            [record.body],
            properties=[properties],
            born_unix_ms=record.born_unix_ms,
            topic_id=retry.topic_id,
            queue_id=0,
        )
        broker.log.put(batch, parse_header(batch), 1)
        return {**answer, "outcome": "retry", "reconsume_times": times + 1}


def _all_rows(broker: "FakeBroker", document: dict[str, Any]) -> list[dict[str, Any]]:
    """The queues that the group has committed."""
    return [
        {"topic_id": topic_id, "queue": queue}
        for group, topic_id, queue in broker.log.offsets
        if group == document["group"]
    ]


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = document.get("queues", document.get("offsets"))
    assert isinstance(rows, list)
    return rows
