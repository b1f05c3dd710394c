"""`paceline cluster ha-status`."""

from typing import Any

import orjson
import pytest
from tests.unit.client.cli.conftest import Runner

from paceline.cli.cluster.ha_status import describe, describe_care, is_in_sync, show

ROW: dict[str, Any] = {
    "replica": 2,
    "address": "127.0.0.2:2",
    "in_set": True,
    "is_learner": False,
    "connected": True,
    "joined": True,
    "sent": 5000,
    "appended": 5000,
    "flushed": 4000,
    "lag_bytes": 0,
    "lag_ms": 3,
    "bytes_per_second": 1200,
}
MASTER: dict[str, Any] = {
    "group": "g1",
    "replica_id": 1,
    "end": 5000,
    "flushed": 5000,
    "confirm": 4000,
    "replication": {"waits": ["replica 3: 96 bytes and 7 ms behind"], "replicas": [ROW]},
}


def test_group_has_its_masters_word_for_replicas_and_waits(paceline: Runner) -> None:
    (group,) = paceline.on_cluster(lambda cluster: cluster.view).groups.values()

    document = describe(group, MASTER)

    assert document == {
        "group": "g1",
        "master": 1,
        "epoch": 1,
        "is_answering": True,
        "sync_state_set": [1, 2],
        "end": 5000,
        "flushed": 5000,
        "confirm": 4000,
        "waits": ["replica 3: 96 bytes and 7 ms behind"],
        "replicas": [ROW],
    }


def test_stranger_on_the_masters_port_or_one_deposed_is_no_answer(paceline: Runner) -> None:
    (group,) = paceline.on_cluster(lambda cluster: cluster.view).groups.values()

    stranger = describe(group, {**MASTER, "group": "g7"})
    deposed = describe(group, {**MASTER, "replication": None})

    assert (stranger["is_answering"], stranger["confirm"]) == (False, None)
    assert (deposed["is_answering"], deposed["replicas"]) == (False, [])


def test_group_without_a_master_that_answers_is_told_and_fails(paceline: Runner) -> None:
    dumb = paceline("cluster", "ha-status", "g1")
    paceline.on_cluster(lambda cluster: cluster.elect("g1", None))
    nobody = paceline("cluster", "ha-status")

    assert (dumb.exit_code, nobody.exit_code) == (1, 1)
    assert "replica 1 is, and does not answer as master" in dumb.stdout
    assert nobody.stdout == "group g1: no master: nobody is elected\n"


def test_json_has_its_shape_also_without_an_answer(paceline: Runner) -> None:
    outcome = paceline("cluster", "ha-status", "--json")

    document = orjson.loads(outcome.stdout)
    assert outcome.exit_code == 1
    assert set(document) == {"cluster_id", "groups"}
    (group,) = document["groups"]
    assert (group["is_answering"], group["waits"], group["replicas"]) == (False, [], [])
    nothing = dict.fromkeys(CARE) | {"stopped": None, "is_answering": False}
    assert group["care"] == [{"replica": 1, **nothing}, {"replica": 2, **nothing}]


CARE: dict[str, Any] = {
    "damage": {"position": 1000, "end": 2000, "reason": "a CRC is wrong"},
    "damages_found": 1,
    "repairs": 2,
    "repaired_bytes": 3000,
    "quarantine_files": 4,
    "quarantine_bytes": 5000,
    "scrub_passes": 6,
}


def test_what_replicas_say_of_their_logs_is_shown(
    paceline: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    (group,) = paceline.on_cluster(lambda cluster: cluster.view).groups.values()
    said = {"group": "g1", "replica_id": 2, "stopped": "LOSSY", "care": {**CARE, "more": 1}}

    care = describe_care("g1", 2, said)
    show({**describe(group, MASTER), "care": [care, describe_care("g1", 3, said)]})

    assert care == {"replica": 2, "is_answering": True, "stopped": "LOSSY", **CARE}
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "  replica 2: its log is damaged from 1,000 to 2,000, and to be mended by another member:"
        " a CRC is wrong",
        "  replica 2 is excluded: LOSSY",
        "  replica 2: 2 repairs since its start, 3,000 bytes",
        "  replica 2: 4 files with 5,000 replaced bytes in quarantine/",
    ]


def test_unknown_group_is_an_error_that_names_the_known_ones(paceline: Runner) -> None:
    outcome = paceline("cluster", "ha-status", "g9")

    assert outcome.exit_code == 1
    assert outcome.stderr == "paceline: there is no broker group g9; known: g1\n"


def test_in_sync_is_when_every_replica_but_learners_is_in_the_set_and_joined() -> None:
    def document(**changes: Any) -> dict[str, Any]:
        rows = [ROW, {**ROW, "replica": 3, **changes}]
        return {"groups": [{"is_answering": True, "replicas": rows}]}

    assert is_in_sync(document())
    assert not is_in_sync(document(in_set=False))
    assert not is_in_sync(document(joined=False))
    assert is_in_sync(document(in_set=False, is_learner=True))
    assert not is_in_sync({"groups": [{"is_answering": False, "replicas": []}]})
    assert not is_in_sync({"groups": []})


def test_waiting_in_vain_ends_in_time_and_fails(paceline: Runner) -> None:
    outcome = paceline("cluster", "ha-status", "--wait-in-sync-ms", "150")

    assert outcome.exit_code == 1
    assert "does not answer as master" in outcome.stdout
