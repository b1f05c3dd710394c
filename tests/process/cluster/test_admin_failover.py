"""Administration while the leading controller dies: each command happens once (R38)."""

import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.process.harness import eventually, http_session, running_cluster
from tests.support.process.load import controller_leader

from paceline.platform.runtime import spawn

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


async def test_a_topic_asked_of_a_follower_while_the_leader_dies_is_made_once(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        async with http_session(timeout_ms=20_000) as http:

            async def ask(address: str, path: str, sequence: int) -> tuple[int, Any]:
                headers = {"Paceline-Session": "test", "Paceline-Sequence": str(sequence)}
                body = {"topic": "orders", "queues": 2} if sequence else None
                url = f"http://{address}{path}"
                async with http.post(url, json=body, headers=headers) as answer:
                    return answer.status, await answer.json(content_type=None)

            name = await controller_leader(cluster)
            dying = cluster.node(name)["address"]
            followers = [address for address in cluster.bootstrap if address != dying]
            assert (await ask(followers[0], "/v1/sessions", 0))[0] == 201
            cluster.send_signal(name, signal.SIGSTOP)
            answers: list[tuple[int, Any]] = []

            async def first() -> None:
                answers.append(await ask(followers[0], "/v1/topics", 1))

            asking = spawn(first(), name="ask")
            await eventually(lambda: _others_lead(http, followers, name), what="a new leader")
            cluster.send_signal(name, signal.SIGKILL)
            await asking
            again = [await ask(address, "/v1/topics", 1) for address in followers]

    [unknown] = answers
    assert (unknown[0], unknown[1]["code"]) == (504, "OUTCOME_UNKNOWN")
    assert [status for status, _ in again] == [201, 201]
    assert again[0] == again[1]


async def _others_lead(http: aiohttp.ClientSession, followers: list[str], old: str) -> bool:
    for address in followers:
        async with http.get(f"http://{address}/v1/status") as answer:
            status = await answer.json()
            if status.get("role") == "leader":
                return bool(status["leader"] != old)
    return False
