"""Pins over HTTP: set, renewed, listed, given up (R26)."""

from tests.support.http.door import Door, a_door
from tests.support.http.http import send

from paceline.records.header import Kind
from paceline_broker.projections.projections import retention_document


async def test_a_pin_is_set_where_its_owner_reads_and_given_up() -> None:
    async with a_door() as door:
        for body in "abc":
            await send(door, body)
        queue = {"topic": "orders", "queue": 0, "offset": 1}

        status, pin = await door.ask(
            "PUT", "/v1/pins/spark-1", {"lease_ms": 60_000, "queues": [queue]}
        )

        stored = door.role.projections.consume_queues.get(1 << 16)
        assert stored is not None
        assert status == 200
        assert pin["position"] == stored.position_of(1)
        assert pin["position"] > 0
        assert pin["lease_ms"] == 60_000
        _, listed = await door.ask("GET", "/v1/pins")
        assert listed == {"log_start": 0, "pins": [pin]}
        assert (await door.ask("DELETE", "/v1/pins/spark-1"))[1] == {"removed": True}
        assert (await door.ask("DELETE", "/v1/pins/spark-1"))[1] == {"removed": False}
        assert (await door.ask("GET", "/v1/pins"))[1]["pins"] == []


async def test_a_pin_without_queues_holds_all_that_is_kept_and_is_renewed() -> None:
    async with a_door() as door:
        await send(door, "a")
        _, first = await door.ask("PUT", "/v1/pins/backup", {"lease_ms": 60_000})
        door.clock.advance(5_000)
        _, second = await door.ask("PUT", "/v1/pins/backup", {"lease_ms": 60_000})

        assert first["position"] == second["position"] == 0
        assert second["expires_unix_ms"] == first["expires_unix_ms"] + 5_000


async def test_what_is_given_up_cannot_be_pinned() -> None:
    async with a_door() as door:
        for body in "abc":
            await send(door, body)
        projections, writer = door.role.projections, door.role.writer()
        document = retention_document(log_start=int(projections.position))
        writer.appender.record(Kind.RETENTION, document, store_unix_ms=projections.log_time_ms)
        queue = {"topic": "orders", "queue": 0, "offset": 1}

        status, problem = await door.ask(
            "PUT", "/v1/pins/late", {"lease_ms": 60_000, "queues": [queue]}
        )

        assert (status, problem["code"]) == (416, "OFFSET_OUT_OF_RANGE")
        assert projections.pins.all() == {}


async def test_bad_pins_are_refused_by_field() -> None:
    async with a_door() as door:
        for document, field in (
            ({}, "lease_ms"),
            ({"lease_ms": 10}, "lease_ms"),
            ({"lease_ms": 60_000, "more": 1}, "more"),
            ({"lease_ms": 60_000, "queues": []}, "queues"),
        ):
            status, problem = await door.ask("PUT", "/v1/pins/a", document)
            assert (status, problem["field"]) == (400, field), document
        door.role.become_replica()
        status, problem = await door.ask("GET", "/v1/pins")
        assert (status, problem["code"]) == (421, "NOT_MASTER")


async def test_a_queue_without_an_offset_is_pinned_from_its_first_kept_message() -> None:
    async with a_door() as door:
        for body in "abc":
            await send(door, body)
        stored = door.role.projections.consume_queues.get(1 << 16)
        assert stored is not None
        second = stored.position_of(1)
        assert second is not None
        _give_up_below(door, second)
        queue = {"topic": "orders", "queue": 0}

        status, pin = await door.ask("PUT", "/v1/pins/a", {"lease_ms": 60_000, "queues": [queue]})

        assert (status, pin["position"]) == (200, second)


async def test_an_offset_beyond_the_end_is_refused_and_the_end_itself_is_not() -> None:
    async with a_door() as door:
        await send(door, "a")

        def ask(queue: int, offset: int) -> dict[str, object]:
            row = {"topic": "orders", "queue": queue, "offset": offset}
            return {"lease_ms": 60_000, "queues": [row]}

        for queue, offset, code in ((0, 2, 416), (1, 1, 416), (0, 1, 200), (1, 0, 200)):
            status, answer = await door.ask("PUT", "/v1/pins/a", ask(queue, offset))
            assert status == code, answer
        _, problem = await door.ask("PUT", "/v1/pins/a", ask(0, 2))
        assert problem["detail"] == "offset 2 of orders g1/0 is beyond the end, 1"
        assert (problem["start"], problem["end"]) == (0, 1)


async def test_a_deleted_offset_of_a_queue_of_which_nothing_is_kept_is_refused() -> None:
    """It used to be taken for the end of a queue that was read to it."""
    async with a_door() as door:
        await send(door, "a")
        _give_up_below(door, int(door.role.projections.position))
        door.role.projections.retain(door.role.projections.position)
        queue = {"topic": "orders", "queue": 0, "offset": 0}

        status, problem = await door.ask(
            "PUT", "/v1/pins/late", {"lease_ms": 60_000, "queues": [queue]}
        )

        assert (status, problem["code"], problem["start"]) == (416, "OFFSET_OUT_OF_RANGE", 1)


def _give_up_below(door: Door, position: int) -> None:
    projections, writer = door.role.projections, door.role.writer()
    writer.appender.record(
        Kind.RETENTION,
        retention_document(log_start=position),
        store_unix_ms=projections.log_time_ms,
    )
