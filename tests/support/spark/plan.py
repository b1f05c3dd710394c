"""What tests of plan share with others."""

from collections.abc import Mapping
from typing import Any

from tests.support.service.fakes import a_view

from paceline.types import GroupName
from paceline.wire.calls.request import AnswerT, Request, read_answer
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

    def call(self, group: GroupName, request: Request[AnswerT], *, is_of_master: bool) -> AnswerT:
        document = request.to_json()
        self.calls.append((document["call"], is_of_master))
        rows = [self._row(document, row) for row in document["queues"]]
        answer: AnswerT = read_answer(request.answer_type(), {"queues": rows})
        return answer

    def _row(self, document: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        start, end = self.ranges[row["queue"]]
        found = {"topic_id": row["topic_id"], "queue": row["queue"], "start": start, "end": end}
        match document["call"]:
            case "ends":
                return found
            case "times":
                self.moments.append(document["unix_ms"])
                return {**found, "offset": self.times[row["queue"]]}
            case _:
                low, high = row["from"], row["to"]
                offsets = [max(low, at) for at in range(low // 10 * 10, high, 10)]
                half = offsets[: max(1, len(offsets) // 2)]
                after = high if half == offsets else offsets[len(half)]
                return {**found, "cuts": [[at, 1000] for at in half], "next": after}


def offsets(first: int, second: int) -> str:
    return f'{{"orders": {{"g1": {{"0": {first}, "1": {second}}}}}}}'
