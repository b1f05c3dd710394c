"""Send-back and resend over HTTP, bad input, and what is counted."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.http.door import Door, a_door
from tests.support.rights import a_security, bearer, entry
from tests.support.service.fakes import a_view
from tests.support.service.send_back import TOPICS

from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.rights import PUB, SUB, UPDATE

SEND_BACK = "/v1/groups/g/send-back"
RESEND = "/v1/groups/g/dead-letters/resend"


async def prepared(door: Door) -> None:
    """A group on record, and three messages in queue 0."""
    group = ConsumerGroupName("g")
    view = replace(
        a_view(version=2, topics=TOPICS), consumer_groups={group: ConsumerGroupView(group=group)}
    )
    door.service.view_changed(view)
    messages = [{"body": body} for body in ("a", "b", "c")]
    document = {"messages": messages, "queue": 0}
    status, _ = await door.ask("POST", "/v1/topics/orders/messages", document)
    assert status == 200


def row(offset: int, **more: Any) -> dict[str, Any]:
    return {"topic": "orders", "queue": 0, "offset": offset, **more}


async def test_messages_go_back_die_and_are_resent() -> None:
    async with a_door() as door:
        await prepared(door)

        status, answer = await door.ask(
            "POST", SEND_BACK, {"messages": [row(0), row(1, delay_level=-1)]}
        )
        assert status == 200
        retry, dead = answer["messages"]
        assert (retry["outcome"], retry["reconsume_times"]) == ("retry", 1)
        assert retry["due_unix_ms"] == door.clock.unix_ms() + 10_000
        assert (dead["outcome"], dead["due_unix_ms"]) == ("dead", None)
        assert {"epoch", "broker", "confirm"} <= answer.keys()

        status, answer = await door.ask("POST", RESEND, {"messages": [{"offset": 0}]})
        assert (status, answer["messages"][0]["topic"]) == (200, "orders")
        _, answer = await door.ask("GET", "/v1/topics/%25DLQ%25g/queues/0/messages?offset=0")
        assert [message["body"] for message in answer["messages"]] == ["b"]
        async with door.session.get(f"http://127.0.0.1:{door.port}/metrics") as response:
            text = await response.text()

    for name in ("send_backs", "dead_letters", "dead_letters_resent"):
        assert f"paceline_{name}_total{{" in text or f"paceline_{name}_total 1" in text, name


@pytest.mark.parametrize(
    ("path", "document", "status", "code"),
    [
        (SEND_BACK, {"messages": []}, 400, "BAD_REQUEST"),
        (SEND_BACK, {"messages": [row(0)] * 1001}, 400, "BAD_REQUEST"),
        (SEND_BACK, {"messages": [row(0), row(0)]}, 400, "BAD_REQUEST"),
        (SEND_BACK, {"messages": [row(0)], "group": "h"}, 400, "BAD_REQUEST"),
        (SEND_BACK, {"messages": [row(0)], "max_reconsume_times": -1}, 400, "BAD_REQUEST"),
        (SEND_BACK, {"messages": [row(0, token=[1])]}, 400, "BAD_REQUEST"),
        (SEND_BACK, {"messages": [row(0, token=[9, 9])]}, 409, "LOCK_FENCED"),
        (SEND_BACK, {"messages": [{**row(0), "topic": "%RETRY%h"}]}, 403, "FORBIDDEN"),
        (SEND_BACK, {"messages": [{**row(0), "topic": "nothing"}]}, 404, "TOPIC_NOT_FOUND"),
        (SEND_BACK, {"messages": [row(3)]}, 503, "NOT_YET_AVAILABLE"),
        ("/v1/groups/none/send-back", {"messages": [row(0)]}, 404, "GROUP_NOT_FOUND"),
        (RESEND, {"messages": [{"offset": 0}]}, 404, "MESSAGE_NOT_FOUND"),
        (RESEND, {"messages": [{"offset": 0}], "to": "x"}, 400, "BAD_REQUEST"),
    ],
)
async def test_bad_input_is_refused_and_stores_nothing(
    path: str, document: dict[str, Any], status: int, code: str
) -> None:
    async with a_door() as door:
        await prepared(door)
        end = door.writer.end

        found, problem = await door.ask("POST", path, document)

        assert (found, problem["code"]) == (status, code)
        assert door.writer.end == end


async def test_who_may_not_send_to_a_topic_resends_nothing_to_it() -> None:
    """CVE-2026-33222 of NATS: the right to restore one thing wrote another."""
    rights = (entry("Group:g", SUB, UPDATE), entry("Topic:orders", SUB))
    async with a_door() as door:
        await prepared(door)
        await door.ask("POST", SEND_BACK, {"messages": [row(0, delay_level=-1)]})
        door.service.access.apply(a_security(ana=rights))
        end, ana = door.log.end, {**bearer("ana"), "Content-Type": "application/json"}

        refused = await door.ask("POST", RESEND, {"messages": [{"offset": 0}]}, headers=ana)
        assert (refused[0], refused[1]["resource"]) == (403, "Topic:orders")
        assert door.log.end == end
        to_group = {"messages": [{"offset": 0}], "to": "group"}
        assert (await door.ask("POST", RESEND, to_group, headers=ana))[0] == 200
        door.service.access.apply(a_security(version=2, ana=(*rights, entry("Topic:orders", PUB))))
        allowed = await door.ask("POST", RESEND, {"messages": [{"offset": 0}]}, headers=ana)

    assert (allowed[0], allowed[1]["messages"][0]["topic"]) == (200, "orders")
