"""Offsets, locks, ends and members: when their answers may leave, and who may give them."""

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest
from tests.support.askers import ANYBODY
from tests.support.http.door import a_batch
from tests.support.service.calls import started
from tests.support.service.fakes import Bench, until
from tests.support.service.send import Answers

from paceline.errors import (
    BadRequestError,
    LockFencedError,
    LockHeldError,
    NotMasterError,
    NotYetAvailableError,
    OutcomeUnknownError,
    OverloadedError,
    PacelineError,
)
from paceline.platform.runtime import ManualClock, spawn
from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline_broker.service.groups import members
from paceline_broker.service.groups.members import MemberTable, coordinating_group

QUEUE = {"topic": "orders", "queue": 0}


def stored(bench: Bench, count: int = 10) -> None:
    bench.service.sender.send(a_batch(*[b"x"] * count), Answers(), 0)
    bench.writer.confirm_all()


async def test_commit_is_answered_when_confirm_has_passed_it() -> None:
    bench = Bench(is_automatic=False)
    stored(bench)

    asking = await started(bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 4}]))
    assert not asking.done()
    bench.writer.confirm_all()

    [answer] = await asking
    assert answer["offsets"][0]["offset"] == 4
    assert answer["confirm"] == bench.log.end


async def test_query_of_a_fenced_master_leaves_no_forgotten_error_behind() -> None:
    """Confirm and round both fail when a mastership ends; an error nobody takes is logged."""
    bench = Bench(is_automatic=False)
    stored(bench)
    commit = await started(bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 4}]))
    bench.writer.rounds_blocked = True
    query = await started(bench.call("offsets", group="g"))
    forgotten: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: forgotten.append(what))

    bench.writer.fence()
    with pytest.raises(OutcomeUnknownError):
        await commit
    with pytest.raises(NotMasterError):
        await query
    del commit, query
    gc.collect()

    assert forgotten == []


async def test_query_is_answered_with_the_state_at_its_arrival_after_confirm_and_a_round() -> None:
    """INV-8, R4: a commit that comes later and is not confirmed must not show."""
    bench = Bench(is_automatic=False)
    stored(bench)
    first = await started(bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 4}]))
    bench.writer.rounds_blocked = True
    query = await started(bench.call("offsets", group="g"))
    at_query = bench.log.end
    second = await started(bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 9}]))

    bench.writer.end_rounds()
    await started(asyncio.wait([query], timeout=0))
    assert not query.done(), "the commit it tells of is not confirmed"
    bench.writer.confirm_to(at_query)

    [answer] = await query
    assert answer["offsets"][0]["offset"] == 4
    assert first.done()
    bench.role.become_replica()
    with pytest.raises(OutcomeUnknownError):
        await second


async def test_query_waits_for_a_read_round_even_when_all_is_confirmed() -> None:
    bench = Bench()
    stored(bench)
    bench.writer.rounds_blocked = True

    query = await started(bench.call("ends", queues=[QUEUE]))
    assert not query.done()
    bench.writer.end_rounds()

    [answer] = await query
    assert answer["queues"] == [{"topic_id": 1, "queue": 0, "start": 0, "end": 10}]


async def test_a_member_whose_stream_closed_is_dropped_unless_it_comes_back() -> None:
    bench = Bench(member_interval_ms=0)
    killed, cut, other = object(), object(), object()
    await bench.service.calls.call(heartbeat("killed"), asker=ANYBODY, caller=killed)
    await bench.service.calls.call(heartbeat("cut"), asker=ANYBODY, caller=cut)
    await bench.service.calls.call(heartbeat("moved"), asker=ANYBODY, caller=cut)
    await bench.service.calls.call(heartbeat("moved"), asker=ANYBODY, caller=other)
    await beat(bench, "posting")

    for connection in (killed, cut):
        bench.service.connection_lost(connection)
    await bench.service.calls.call(heartbeat("cut"), asker=ANYBODY, caller=object())
    bench.clock.advance(bench.service.settings.member_lost_ms)
    before = await beat(bench, "posting")
    waiting = await started(beat(bench, "posting", generation=before["generation"], wait_ms=60_000))
    async with asyncio.timeout(5):
        [answer] = await waiting

    assert [row["client_id"] for row in answer["members"]] == ["cut", "moved", "posting"]
    await bench.service.close()


def test_a_connection_that_carried_no_member_any_more_drops_nobody() -> None:
    table = MemberTable(expiry_ms=10_000, generation_first=0)
    table.hear("g", "a", ("t",), (), now_ms=0, via="old")
    table.leave("g", "a")
    table.hear("g", "a", ("t",), (), now_ms=0, via="new")

    assert not table.connection_lost("old", now_ms=0)
    assert table.expire(1) == []
    assert table.connection_lost("new", now_ms=1)
    assert table.expire(1) == ["g"]


def test_names_that_nobody_uses_any_more_are_forgotten_and_their_generations_never_come_again() -> (
    None
):
    table = MemberTable(expiry_ms=10_000, generation_first=0)
    last = 0
    for number in range(100):
        table.hear(f"g{number % 10}", "a", ("t",), (), now_ms=0)
        assert table.generation(f"g{number % 10}") > last
        table.leave(f"g{number % 10}", "a")
        last = table.generation(f"g{number % 10}")
    assert not table.generations


async def test_members_that_name_very_much_do_not_fill_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each heartbeat is bounded, and so is what all of them say."""
    queues = 4
    monkeypatch.setattr(members, "TEXT_MAX", 3 * queues * members.OWNED_TEXT)
    bench = Bench(member_expiry_ms=10_000)
    bench.clock.advance(bench.service.settings.member_interval_ms)  # it has listened for others

    async def beat(client_id: str, owned: int, **more: Any) -> None:
        rows = [[1, "g1", queue] for queue in range(owned)]
        fields = {"group": "billing", "topics": [], "owned": rows, "generation": 0, **more}
        await bench.call("heartbeat", client_id=client_id, **fields)

    await beat("a", queues)
    bench.clock.advance(5_000)
    await beat("b", 2 * queues)
    for client_id, owned, more in (
        ("c", 1, {}),
        ("a", queues + 1, {}),
        ("a", queues, {"topics": ["orders"]}),
        ("a", queues, {"filters": {"orders": "x"}}),
    ):
        with pytest.raises(OverloadedError, match="2 members"):
            await beat(client_id, owned, **more)
    await beat("b", 2 * queues)
    bench.clock.advance(5_000)

    await beat("c", queues)  # the silent one has gone, and its room is free
    await beat("b", 1)
    await beat("c", 2 * queues)
    answer = await bench.call("members", group="billing")
    assert [row["client_id"] for row in answer["members"]] == ["b", "c"]
    table = bench.service.coordinator._table
    assert table.text == (1 + 2 * queues) * members.OWNED_TEXT
    for client_id in ("b", "c"):
        await bench.call("leave", group="billing", client_id=client_id)
    assert table.text == 0


async def test_those_who_are_refused_do_not_make_the_coordinator_go_through_all_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are as many members as may be, and whoever is refused asks again each second."""
    looks = 0
    expire = MemberTable.expire

    def counted(table: MemberTable, now_ms: int) -> list[str]:
        nonlocal looks
        looks += 1
        return expire(table, now_ms)

    monkeypatch.setattr(MemberTable, "expire", counted)
    bench = Bench(members_max=1)
    bench.clock.advance(bench.service.settings.member_interval_ms)
    fields = {"group": "billing", "topics": [], "owned": [], "generation": 0}
    await bench.call("heartbeat", client_id="a", **fields)
    for number in range(200):
        with pytest.raises(OverloadedError):
            await bench.call("heartbeat", client_id=f"b{number}", **fields)
        bench.clock.advance(1)
    assert 1 <= looks <= 5


async def test_who_begins_to_wait_as_others_are_woken_hears_of_the_next_change() -> None:
    bench = Bench(member_interval_ms=60_000)
    coordinator = bench.service.coordinator
    first = await started(coordinator._wait("g", 60_000))
    second = spawn(coordinator._wait("g", 60_000), name="second")  # before `first` goes on
    coordinator._wake("g")
    await first

    coordinator._wake("g")

    async with asyncio.timeout(5):
        await second
    await bench.service.close()


async def test_members_that_subscribe_differently_are_told_of() -> None:
    bench = Bench(member_interval_ms=0)
    both = {"topics": ["orders", "bills"], "mode": "concurrent", "message_model": "clustering"}
    await beat(bench, "a", filters={"orders": "red"}, **both)

    agreed = await beat(bench, "b", filters={"orders": "red"}, **both)
    differing = await beat(bench, "c", filters={"orders": "blue"}, topics=["orders"])

    assert agreed["inconsistent_topics"] == []
    assert differing["inconsistent_topics"] == ["bills", "orders"]
    assert differing["members"][0]["filters"] == {"orders": "red"}
    assert differing["members"][0]["message_model"] == "clustering"
    await bench.service.close()


@pytest.mark.parametrize(
    ("call", "fields"),
    [("offsets", {"group": "g"}), ("ends", {"queues": [QUEUE]}), ("lag", {"group": "g"})],
)
async def test_queries_are_refused_before_the_epoch_is_open(
    call: str, fields: dict[str, Any]
) -> None:
    """R3."""
    bench = Bench()
    bench.writer.is_open = False

    with pytest.raises(NotYetAvailableError):
        await bench.call(call, **fields)


@pytest.mark.parametrize("call", ["offsets", "lag", "members"])
async def test_replica_answers_no_query(call: str) -> None:
    bench = Bench()
    bench.role.become_replica()

    with pytest.raises(NotMasterError):
        await bench.call(call, group="g")


async def test_refused_lock_appends_nothing_but_waits_for_what_it_tells() -> None:
    bench = Bench(is_automatic=False)
    held = await started(bench.call("lock", group="g", client_id="a", queues=[QUEUE]))
    before = bench.log.end

    refused = await started(bench.call("lock", group="g", client_id="b", queues=[QUEUE]))

    assert bench.log.end == before
    assert not refused.done(), "the lock it tells of is not confirmed"
    bench.writer.confirm_all()
    [answer] = await held
    assert answer["queues"][0]["code"] is None
    with pytest.raises(LockHeldError) as caught:
        await refused
    assert caught.value.details["queues"][0]["holder"] == "a"  # type: ignore[index]


@pytest.mark.parametrize(
    ("asked_ms", "granted_ms"), [(None, 30_000), (30_300, 30_000), (5_000, 5_000)]
)
async def test_a_lock_is_granted_for_at_most_the_lease_of_the_broker(
    asked_ms: int | None, granted_ms: int
) -> None:
    bench = Bench(lock_lease_ms=30_000)
    wanted = {} if asked_ms is None else {"lease_ms": asked_ms}

    answer = await bench.call("lock", group="g", client_id="a", queues=[QUEUE], **wanted)

    assert answer["lease_ms"] == granted_ms
    with pytest.raises(LockHeldError):
        await bench.call("lock", group="g", client_id="b", queues=[QUEUE])


async def test_lock_tokens_grow_over_epochs_and_fence_the_past() -> None:
    """INV-11."""
    bench = Bench()
    stored(bench)
    first = await bench.call("lock", group="g", client_id="a", queues=[QUEUE])
    old = first["queues"][0]["token"]
    bench.role.begin_epoch(2)
    bench.service.role_changed()
    bench.clock.advance(60_000)

    second = await bench.call("lock", group="g", client_id="b", queues=[QUEUE])

    assert second["queues"][0]["token"] > old
    with pytest.raises(LockFencedError):
        await bench.call("commit", group="g", offsets=[{**QUEUE, "offset": 1, "token": old}])
    with pytest.raises(LockFencedError):
        await bench.call("unlock", group="g", client_id="a", queues=[{**QUEUE, "token": old}])


async def test_commit_of_many_queues_says_which_were_refused() -> None:
    bench = Bench()
    stored(bench)
    other = {"topic": "orders", "queue": 1}

    answer = await bench.call(
        "commit", group="g", offsets=[{**QUEUE, "offset": 3}, {**other, "offset": 3}]
    )

    assert [row["code"] for row in answer["offsets"]] == [None, "OFFSET_OUT_OF_RANGE"]


# -- members --------------------------------------------------------------------------------------


def heartbeat(client_id: str) -> dict[str, Any]:
    fields = {"topics": ["orders"], "owned": [], "generation": 0}
    return {"call": "heartbeat", "group": "g", "client_id": client_id, **fields}


def beat(bench: Bench, client_id: str, **fields: Any) -> Any:
    defaults = {"topics": ["orders"], "owned": [], "generation": 0}
    return bench.call("heartbeat", group="g", client_id=client_id, **{**defaults, **fields})


async def test_heartbeat_waits_while_nothing_changes_and_hears_of_a_change() -> None:
    bench = Bench(member_interval_ms=60_000)
    bench.service.role_changed()
    bench.clock.advance(60_000)
    answer = await beat(bench, "a")

    waiting = await started(beat(bench, "a", generation=answer["generation"], wait_ms=60_000))
    assert not waiting.done()
    await beat(bench, "b")

    [changed] = await waiting
    assert [member["client_id"] for member in changed["members"]] == ["a", "b"]
    assert changed["generation"] > answer["generation"]
    await bench.service.close()


async def test_owned_queues_are_shown_so_that_they_can_be_released_first() -> None:
    bench = Bench()
    await beat(bench, "a", owned=[[1, "g1", 3]])

    answer = await beat(bench, "b")

    assert answer["members"][0]["owned"] == [[1, "g1", 3]]
    released = await beat(bench, "a")
    assert released["generation"] > answer["generation"]
    await bench.service.close()


async def test_a_member_may_own_more_than_ten_thousand_queues() -> None:
    """A bound of exactly 10,000 shut out who owned so many, and the queue of its retry topic."""
    bench = Bench()
    await beat(
        bench, "a", owned=[[1 + number // 4096, "g1", number % 4096] for number in range(20_000)]
    )

    answer = await beat(bench, "b")

    assert len(answer["members"][0]["owned"]) == 20_000
    with pytest.raises(BadRequestError, match="owned: expected array of length <= 40000"):
        await beat(bench, "a", owned=[[1, "g1", 0]] * 40_001)
    await bench.service.close()


async def test_new_coordinator_listens_for_one_interval_before_it_answers() -> None:
    bench = Bench(member_interval_ms=60_000)
    bench.service.role_changed()

    waiting = await started(beat(bench, "a"))

    assert not waiting.done()
    bench.role.become_replica()
    bench.service.role_changed()
    with pytest.raises(NotMasterError):
        await waiting
    await bench.service.close()


async def test_group_of_another_coordinator_is_told_its_master() -> None:
    groups = [coordinating_group(f"group{number}", ["b", "a"]) for number in range(50)]  # type: ignore[list-item]

    assert set(groups) == {"a", "b"}


def test_silent_member_is_dropped_after_the_expiry() -> None:
    clock = ManualClock()
    table = MemberTable(expiry_ms=10_000, generation_first=5 << 32)
    table.hear("g", "a", ("t",), (), now_ms=clock.monotonic_ms())
    clock.advance(6000)
    table.hear("g", "b", ("t",), (), now_ms=clock.monotonic_ms())
    before = table.generation("g")
    assert table.expire(clock.monotonic_ms()) == []
    clock.advance(4000)

    assert table.expire(clock.monotonic_ms()) == ["g"]

    assert [member["client_id"] for member in table.members("g")] == ["b"]
    assert table.generation("g") == before + 1
    assert table.members_count == 1


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("commit", {"group": "g", "offsets": []}),
        ("commit", {"group": "a/b", "offsets": [{**QUEUE, "offset": 0}]}),
        ("commit", {"group": "g", "offsets": [{**QUEUE, "offset": 0, "token": [1]}]}),
        ("commit", {"group": "g", "offsets": [{**QUEUE, "offset": 0}], "reset": 1}),
        ("lock", {"group": "g", "client_id": "a", "queues": [QUEUE], "lease_ms": 10**9}),
        ("lock", {"group": "g", "client_id": "", "queues": [QUEUE]}),
        ("ends", {"queues": [{"topic": "orders", "queue": 99}]}),
        ("ends", {"queues": [{"topic": "nothing", "queue": 0}]}),
        ("ends", {"queues": [{"topic": "%RETRY%g", "queue": 0}]}),
        ("heartbeat", {"group": "g", "client_id": "a", "topics": "orders", "owned": []}),
        (
            "heartbeat",
            {"group": "g", "client_id": "a", "topics": [], "owned": [[1]], "generation": 0},
        ),
        ("routes", {"version": "new"}),
        ("ends", {"queues": [QUEUE], "colour": "red"}),
    ],
)
async def test_wrong_calls_are_definite_refusals(call: str, fields: dict[str, Any]) -> None:
    bench = Bench()
    before = bench.log.end

    with pytest.raises(PacelineError) as caught:
        await bench.call(call, **fields)

    assert caught.value.is_definite
    assert caught.value.status < 500
    assert bench.log.end == before


async def test_long_wait_of_routes_is_bounded() -> None:
    bench = Bench(view_wait_ms=1)

    answer = await bench.call("routes", version=99)

    assert answer["version"] == 1
    await until(lambda: not bench.service.routes._waiters)


async def test_members_hear_of_each_other_at_once_unless_their_group_does_not_want_it() -> None:
    """`notify_consumer_ids_changed_enable`."""
    bench = Bench(member_interval_ms=500)
    beat = {"group": "billing", "topics": ["orders"], "owned": [], "generation": 0}
    await bench.call("heartbeat", client_id="a", **beat)
    for is_wanted in (True, False):
        view = bench.service.routes.view
        assert view is not None
        settings = ConsumerGroupSettings(notify_consumer_ids_changed_enable=is_wanted)
        group = ConsumerGroupView(group=ConsumerGroupName("billing"), settings=settings)
        changed = replace(view, version=view.version + 1, consumer_groups={group.group: group})
        bench.service.view_changed(changed)
        present = (await bench.call("members", group="billing"))["generation"]
        fields = {**beat, "generation": present, "wait_ms": 500}
        waiting = await started(bench.call("heartbeat", client_id="a", **fields))

        await bench.call("heartbeat", client_id=f"b-{is_wanted}", **beat)
        await asyncio.wait([waiting], timeout=0)

        assert waiting.done() is is_wanted
        [answer] = await waiting
        assert answer["generation"] > present
