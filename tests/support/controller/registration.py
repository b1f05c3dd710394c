"""What tests of registration share with others."""

from dataclasses import replace
from typing import Any

from tests.support.controller.builders import SETTINGS, Driver

from paceline.types import Incarnation, ReplicaId


def a_pair() -> Driver:
    """Replicas 1 and 2, of which 1 is master, and the min of such a group."""
    driver = Driver()
    driver.found()
    settings = replace(SETTINGS, total_replicas=2, min_in_sync_replicas=1)
    for number in (1, 2):
        driver.register(number, defaults=settings)
    members = {ReplicaId(number): Incarnation(1) for number in (1, 2)}
    assert driver.elect(1, is_first=True, members=members)["ok"]
    driver.report_open()
    return driver


def restarted(driver: Driver, number: int, **changes: Any) -> dict[str, Any]:
    """Replica `number` of a founded group starts again, healthy, unless changed."""
    arguments = {
        "replica_id": ReplicaId(number),
        "incarnation": 2,
        "is_empty": False,
        "end": 10_000,
        "confirm": 10_000,
        "last_epoch": driver.group.master_epoch,
        **changes,
    }
    return driver.register(number, **arguments)
