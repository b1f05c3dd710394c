"""Pure: how far a consumer group has come in a queue, by what its members were given."""

from collections import Counter
from collections.abc import Collection, Iterable
from operator import attrgetter

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.history.model import Deliver, Outcome


class Progress:
    """A walk in time. An offset is processed once a delivery of it has ended well, or as often
    without success as a consumer gives up after, or once so and a retry or dead letter was made."""

    def __init__(
        self,
        evidence: Evidence,
        start: int,
        delivers: Iterable[Deliver],
        *,
        sent_back: Collection[int] = (),
        unwanted: Collection[int] = (),
    ) -> None:
        """`unwanted`: offsets that nobody is given, and that count as processed."""
        self.delivers = sorted(delivers, key=attrgetter("answered_us", "number"))
        self._attempts_max = evidence.bounds.attempts_max
        self._frontier = start
        self._sent_back = sent_back
        self._processed = set(unwanted)
        self._failures: Counter[int] = Counter()
        self._done = 0

    def pass_over(self, offset: int) -> None:
        """All below it is as good as processed."""
        self._frontier = max(self._frontier, offset)

    def at(self, at_us: int) -> int:
        """The first offset that was not processed by then; moments only rise."""
        while self._done < len(self.delivers) and self.delivers[self._done].answered_us <= at_us:
            self._ended(self.delivers[self._done])
            self._done += 1
        while self._frontier in self._processed:
            self._frontier += 1
        return self._frontier

    def _ended(self, deliver: Deliver) -> None:
        offset, is_done = deliver.message.offset, deliver.outcome is Outcome.OK
        self._failures[offset] += not is_done
        is_given_up = self._failures[offset] >= self._attempts_max or offset in self._sent_back
        if is_done or is_given_up:
            self._processed.add(offset)
