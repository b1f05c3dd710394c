"""Controllers are replaced under load, also one that lost its folder (R18)."""

import asyncio
import functools
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.process.harness import (
    RunningCluster,
    eventually,
    http_session,
    paceline_command,
    running_cluster,
    the_master,
)
from tests.support.process.load import (
    Load,
    all_in_sync,
    check_epochs,
    check_stored,
    controller_leader,
    controller_status,
    reach,
    settled,
    under_load,
)
from tests.support.process.machines import Machines, taking_over

from paceline.platform.runtime import SystemClock, pause

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

UNLED_MS = 2_500
"""Several times the longest time after which a controller that hears no leader asks for votes."""


@pytest.mark.alone
async def test_each_controller_is_replaced_under_load(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster, taking_over(cluster) as machines:
        async with under_load(cluster, "orders") as load:
            await reach(load, 100)
            for old, new in (("c1", "c4"), ("c2", "c5"), ("c3", "c6")):
                raft, client = machines.add_controller(new, like="c1")

                answer = await _controller(
                    cluster, "members", "replace", old, new, "--raft", raft, "--client", client
                )

                assert new in _names(answer)
                assert old not in _names(answer)
                sentence = f"controller {old} was removed from the quorum"
                has_ended = functools.partial(_has_said, cluster, old, sentence)
                await eventually(has_ended, within_ms=60_000, what=f"{old} ends")
                cluster.bootstrap.append(client)
                await reach(load, load.count + 200)
            moved = await _controller(cluster, "transfer")
            assert moved["elapsed_ms"] < 1_000
            await reach(load, load.count + 200)
        status = await _controller(cluster, "status")
        assert [row["controller_id"] for row in status["controllers"]] == ["c4", "c5", "c6"]
        assert {row["sessions"] for row in status["controllers"]} == {3}
        assert {row["generation"] for row in status["controllers"]} == {9}
        positions = await settled(cluster)
    check_stored(cluster, positions, load)


async def test_a_controller_without_its_folder_does_not_vote_and_is_replaced(
    tmp_path: Path,
) -> None:
    """It comes back under its old id and counts for nothing; a new one takes its place."""
    with running_cluster(tmp_path / "data") as cluster, taking_over(cluster) as machines:
        async with under_load(cluster, "orders") as load:
            await reach(load, 100)
            leader = await controller_leader(cluster)
            wiped, other = (name for name in ("c1", "c2", "c3") if name != leader)
            await machines.end(wiped)
            machines.copy(wiped, tmp_path / "copy")
            machines.wipe(wiped)
            machines.start(wiped)
            refusal = f"controller '{wiped}' comes with another data folder than before"
            is_refused = functools.partial(_has_been_said, cluster, refusal)
            await eventually(is_refused, what=f"{wiped} is refused")

            await _nobody_leads_without(cluster, machines, leader, load)

            machines.start(leader)
            assert await controller_leader(cluster) in (leader, other)
            await machines.end(wiped, signal.SIGTERM)
            cluster.bootstrap.remove(_address(cluster, wiped))
            raft, client = machines.add_controller("c4", like="c1")
            answer = await _controller(
                cluster, "members", "replace", wiped, "c4", "--raft", raft, "--client", client
            )
            assert _names(answer) == sorted([leader, other, "c4"])
            cluster.bootstrap.append(client)
            await _an_old_copy_ends_by_itself(machines, wiped, tmp_path / "copy")
            cluster.forgotten.add(wiped)

            # The vote of the new one is needed from here on, and a master has to be replaced.
            present = await controller_leader(cluster)
            await machines.end(next(name for name in (leader, other) if name != present))
            await machines.end(await the_master(cluster))
            await reach(load, load.count + 500)
        assert len({entry.epoch for entry in load.acknowledged}) > 1, "no master was replaced"
        for node in cluster.nodes():
            if not machines.is_running(node["name"]):
                machines.start(node["name"])
        await all_in_sync(cluster)
        positions = await settled(cluster)

    check_epochs(load)
    check_stored(cluster, positions, load)


async def _nobody_leads_without(
    cluster: RunningCluster, machines: Machines, leader: str, load: Load
) -> None:
    """Kill the leader: the one left and the one that forgot its promises are no majority.

    Messages need no controller meanwhile.
    """
    await machines.end(leader)
    before = load.count
    clock = SystemClock()
    until_ms = clock.monotonic_ms() + UNLED_MS
    addresses = [address for address in cluster.bootstrap if address != _address(cluster, leader)]
    async with http_session() as session:
        while clock.monotonic_ms() < until_ms:
            answers = [await controller_status(session, address) for address in addresses]
            roles = [status["role"] for status in answers if status is not None]
            assert roles == ["follower"], "one leads by an empty folder (R18), or none answers"
            await pause(20)
    assert load.count > before + 100


async def _an_old_copy_ends_by_itself(machines: Machines, name: str, copy: Path) -> None:
    """Of the folder of a controller that was replaced meanwhile."""
    machines.restore(name, copy)
    machines.start(name)

    async def has_ended() -> bool:
        return not machines.is_running(name)

    await eventually(has_ended, what=f"{name} ends")
    sentence = f"controller {name} was removed from the quorum"
    assert await _has_said(machines.cluster, name, sentence)


def _address(cluster: RunningCluster, name: str) -> str:
    address: str = cluster.node(name)["address"]
    return address


def _names(members: dict[str, Any]) -> list[str]:
    return [member["controller_id"] for member in members["members"]]


async def _has_said(cluster: RunningCluster, name: str, sentence: str) -> bool:
    said = (cluster.data_dir / "logs" / f"{name}.log").read_text(errors="replace")
    return sentence in said


async def _has_been_said(cluster: RunningCluster, sentence: str) -> bool:
    """By any controller."""
    said = [await _has_said(cluster, name, sentence) for name in ("c1", "c2", "c3")]
    return any(said)


async def _controller(cluster: RunningCluster, *arguments: str) -> dict[str, Any]:
    """`paceline controller ... --json`."""
    process = await asyncio.create_subprocess_exec(
        *paceline_command("controller", *arguments, "--json"),
        "--bootstrap",
        ",".join(cluster.bootstrap),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode() + out.decode()
    document: dict[str, Any] = json.loads(out)
    return document
