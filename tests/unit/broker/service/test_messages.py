"""The JSON door's use-case: what an acknowledgement says of itself."""

import asyncio

import orjson
from tests.support.http.turns import turn
from tests.support.service.fakes import Bench

from paceline.wire.http import parse_json_object, parse_send


async def test_an_acknowledgement_names_the_epoch_it_was_given_in() -> None:
    """INV-4: a zombie that learned of epoch 2 answered for epoch 1 with "epoch": 2."""
    bench = Bench(is_automatic=False)
    topic = bench.service.routes.topics_by_id[1]
    request = parse_send(parse_json_object(orjson.dumps({"messages": [{"body": "hello"}]})))
    answering = asyncio.gather(bench.service.messages.send(topic, request))
    await turn()

    bench.writer.confirm_all()
    bench.role.become_replica()
    bench.role.begin_epoch(2)

    [stored] = await answering
    assert stored["epoch"] == 1
    assert bench.role.epoch == 2
    assert stored["messages"][0]["offset"] == 0
