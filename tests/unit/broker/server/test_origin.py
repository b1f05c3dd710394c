"""No web page can have a browser read messages or order something at a broker."""

import pytest
from tests.support.http.door import a_door
from tests.support.rights import a_security

MESSAGES = "/v1/topics/orders/messages"
JSON = {"Content-Type": "application/json"}


async def test_a_send_that_a_page_ordered_is_refused_and_stores_nothing() -> None:
    async with a_door() as door:
        end = door.writer.end
        for headers in ({"Origin": "http://evil.example.net"}, {"Host": "evil.example.net"}):
            status, problem = await door.ask(
                "POST",
                MESSAGES,
                {"messages": [{"body": "x"}]},
                headers={**JSON, **headers},
            )

            assert (status, problem["code"]) == (403, "FORBIDDEN")
        assert door.writer.end == end


@pytest.mark.parametrize(
    "path", ["/v1/routes", "/v1/topics/orders/queues/0/messages", "/v1/status"]
)
async def test_a_read_under_a_name_that_was_rebound_is_refused(path: str) -> None:
    async with a_door() as door:
        status, problem = await door.ask("GET", path, headers={"Host": "evil.example.net:7706"})

        assert (status, problem["field"]) == (403, "Host")


async def test_answers_are_no_pages_and_a_refusal_says_how_to_come() -> None:
    async with a_door() as door:
        door.service.access.apply(a_security())
        url = f"http://127.0.0.1:{door.port}/v1/status"
        async with door.session.get(url) as answer:
            headers = answer.headers
    assert headers["WWW-Authenticate"] == "Bearer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
