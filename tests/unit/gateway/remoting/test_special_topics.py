"""Sends to topics that there are not, and to those that are no client's."""

import pytest
from tests.support.gateway.remoting import a_gateway

from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode


async def test_a_topic_that_no_broker_makes_does_not_exist() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        for _ in range(2):
            answer = await client.send(b"lost", topic="nobody")
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST, answer.remark
        default = await client.send(b"lost", topic="TBW102")
        assert default.code == ResponseCode.NO_PERMISSION, default.remark


@pytest.mark.parametrize("properties", [{}, {"UNIQ_KEY": "U1"}, {"RETRY_TOPIC": "orders"}])
async def test_a_send_to_a_retry_topic_says_which_message(properties: dict[str, str]) -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        answer = await client.send(b"?", topic="%RETRY%g", properties=properties)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "RETRY_TOPIC and UNIQ_KEY" in (answer.remark or "")


async def test_a_reply_goes_to_no_retry_topic() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        text = "UNIQ_KEY\x01U1\x02RETRY_TOPIC\x01orders\x02"
        fields = {"a": "p", "b": "%RETRY%g", "e": 0, "f": 0, "i": text}

        answer = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"?")

        assert answer.code == ResponseCode.INVALID_PARAMETER
