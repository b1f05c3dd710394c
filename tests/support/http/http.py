"""What tests of http share with others."""

from tests.support.http.door import Door

MESSAGES = "/v1/topics/orders/messages"


async def send(door: Door, *bodies: str, **fields: object) -> dict[str, object]:
    document = {"messages": [{"body": body} for body in bodies], "queue": 0, **fields}
    status, answer = await door.ask("POST", MESSAGES, document)
    assert status == 200, answer
    return answer
