"""What tests of send share with others."""

from typing import Any

from paceline.errors import (
    PacelineError,
)
from paceline.wire.stream import (
    ProduceAnswer,
)


class Answers:
    """A sink that remembers, in order."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []

    def produced(self, request_id: int, answer: ProduceAnswer) -> None:
        self.answers.append((request_id, answer))

    def failed(self, request_id: int, error: PacelineError) -> None:
        self.answers.append((request_id, error))

    @property
    def ids(self) -> list[int]:
        return [request_id for request_id, _ in self.answers]

    @property
    def last(self) -> Any:
        return self.answers[-1][1]
