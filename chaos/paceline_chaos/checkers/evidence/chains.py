"""Pure: what masters made of a message for a consumer group: its way back to it, or to its death.

A consumer group g that sends messages back has the topics %RETRY%g and %DLQ%g. Its *links* are the
records that masters made for them, in the truth: cause RETRIED (it waits), DEAD; each names the
record it was made from, which is one of a queue that g reads. A retry that was due is a record of
%RETRY%g, cause DELAYED, made from the one that waited. So the links of a message are a chain from
its first storing on.
"""

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

from paceline.records.header import pack_source, unpack_source
from paceline_chaos.history.model import Queue, ReplicaDump, StoredBatch

RETRY, DLQ = "%RETRY%", "%DLQ%"


class Link(NamedTuple):
    """One record made of another for a consumer group."""

    cause: str
    source: int
    made: int


class Place(NamedTuple):
    """Of a record that is in a queue."""

    queue: Queue
    offset: int


class Chains:
    """The links of one broker group's truth, by consumer group."""

    def __init__(self, dump: ReplicaDump) -> None:
        self.links: defaultdict[str, list[Link]] = defaultdict(list)
        self.waited: dict[int, int] = {}
        """Record of a queue -> the one that waited for it."""
        self.delivered: defaultdict[int, list[int]] = defaultdict(list)
        """Record that waited -> what was made of it when it was due."""
        self.resent: defaultdict[int, list[int]] = defaultdict(list)
        """Dead letter -> what was made of it when it was given to its group again."""
        self._batches: dict[int, StoredBatch] = {}
        for batch in dump.batches:
            if batch.queue is not None:
                self._batches[batch.position] = batch
            self._sort_in(batch)

    def _sort_in(self, batch: StoredBatch) -> None:
        made = [pack_source(batch.position, index) for index in range(len(batch.sources))]
        if batch.cause in ("RETRIED", "DEAD"):
            prefix = RETRY if batch.cause == "RETRIED" else DLQ
            group = batch.target.removeprefix(prefix)
            for source, record in zip(batch.sources, made, strict=True):
                self.links[group].append(Link(batch.cause, source, record))
        elif batch.cause == "DELAYED":
            for source, record in zip(batch.sources, made, strict=True):
                self.waited[record] = source
                self.delivered[source].append(record)
        elif batch.cause == "RESENT":
            for source, record in zip(batch.sources, made, strict=True):
                self.resent[source].append(record)

    def place(self, record: int) -> Place | None:
        """Queue and offset of a record; None if it is in no queue, or deleted."""
        position, index = unpack_source(record)
        batch = self._batches.get(position)
        if batch is None or batch.queue is None:
            return None
        return Place(batch.queue, batch.base_offset + index)

    @cached_property
    def sent_back(self) -> dict[tuple[str, Queue], set[int]]:
        """(consumer group, queue) -> offsets of which a retry or dead letter was made."""
        return self._made_of({"RETRIED", "DEAD"})

    @cached_property
    def dead(self) -> dict[tuple[str, Queue], set[int]]:
        """The same of dead letters alone."""
        return self._made_of({"DEAD"})

    def _made_of(self, causes: set[str]) -> dict[tuple[str, Queue], set[int]]:
        found: defaultdict[tuple[str, Queue], set[int]] = defaultdict(set)
        for group, links in self.links.items():
            for link in links:
                place = self.place(link.source)
                if place is not None and link.cause in causes:
                    found[group, place.queue].add(place.offset)
        return found
