"""What tests of plan share with others."""

from collections.abc import Mapping
from typing import Any

from tests.support.service.fakes import a_view

from paceline.types import GroupName
from paceline.wire.cluster import ClusterView


class FakeBrokers:
    """Queue 0 has [10, 100), queue 1 [0, 50), both in batches of ten records of 1000 bytes."""

    ranges = {0: (10, 100), 1: (0, 50)}

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self.topics = {"orders": 2} if topics is None else topics
        self.calls: list[tuple[str, bool]] = []
        self.times: dict[int, int] = {}
        self.moments: list[int] = []

    def view(self, *, is_fresh: bool = False) -> ClusterView:
        return a_view(topics=self.topics)

    def call(
        self, group: GroupName, document: Mapping[str, Any], *, is_of_master: bool
    ) -> dict[str, Any]:
        self.calls.append((document["call"], is_of_master))
        return {"queues": [self._row(document, row) for row in document["queues"]]}

    def _row(self, document: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        start, end = self.ranges[row["queue"]]
        match document["call"]:
            case "ends":
                return {"start": start, "end": end}
            case "times":
                self.moments.append(document["unix_ms"])
                return {"start": start, "end": end, "offset": self.times[row["queue"]]}
            case _:
                low, high = row["from"], row["to"]
                offsets = [max(low, at) for at in range(low // 10 * 10, high, 10)]
                half = offsets[: max(1, len(offsets) // 2)]
                after = high if half == offsets else offsets[len(half)]
                return {"cuts": [[at, 1000] for at in half], "next": after}


def offsets(first: int, second: int) -> str:
    return f'{{"orders": {{"g1": {{"0": {first}, "1": {second}}}}}}}'
