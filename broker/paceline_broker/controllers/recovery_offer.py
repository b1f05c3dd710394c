"""Offers a store to controllers that do not know its group, for recovery (R18).

They have lost their folders, or forgot the group. The store is shown and waits: nothing of it is
changed, and it serves nobody, until an operator has recovered the group from it or from another.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.errors import ConfigError
from paceline.platform.runtime import pause
from paceline.wire.session_commands import (
    BrokerCommand,
    PresentedTopic,
    PresentStore,
    PresentTopics,
)
from paceline_broker.acting.locks import longest_leases_ms
from paceline_broker.config import BrokerConfig
from paceline_broker.projections.projections import Projections
from paceline_broker.storage.store import Store, fold

log = logging.getLogger("paceline.broker")

RETRY_MS = 500
"""Between two registrations that wait for the operator: a recovered group leads soon after."""
PRESENT_MS = 10_000
"""Between two presentations, which may be long: each is an entry of the controllers' log."""
TELL_MS = 60_000
"""Between two log lines that say what this broker waits for."""
PART_BYTES_MAX = 256 * 1024
"""Topics of one command, an entry of the controllers' log: the first of them come each time."""
TOPIC_BYTES_MAX = 32
"""Of a topic's text but its name."""
WAITS = ("RECOVERY_NEEDED", "GROUP_KNOWN")
"""Answers to a presentation after which the registration is repeated."""


class Controllers(Protocol):
    """The sessions with them, as far as they are used here."""

    async def request(self, command: BrokerCommand) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Presentation:
    """What one start of a store has to show."""

    store: PresentStore
    """With the first of its topics."""
    more: tuple[PresentTopics, ...]
    """The others, in parts that follow each other."""


class RecoveryWait:
    """One start of a store whose group the controllers do not know; owned by its registration."""

    def __init__(
        self,
        controllers: Controllers,
        store: Store,
        *,
        client_address: str,
        replication_address: str,
        config: BrokerConfig,
    ) -> None:
        self._controllers = controllers
        self._store = store
        self._client_address = client_address
        self._replication_address = replication_address
        self._config = config
        self._presentation: Presentation | None = None
        self._unpresented_ms = PRESENT_MS
        self._untold_ms = TELL_MS

    async def show(self, why: str) -> None:
        """Wait a little, with the store shown. Raises ConfigError when it will not be heard.

        Again and again: these controllers may be replaced as well, or be told to forget it.
        """
        if self._unpresented_ms >= PRESENT_MS:
            await self._present()
            self._unpresented_ms = 0
        if self._untold_ms >= TELL_MS:
            log.warning("recovery_needed", extra={"why": why})
            self._untold_ms = 0
        await pause(RETRY_MS)
        self._unpresented_ms += RETRY_MS
        self._untold_ms += RETRY_MS

    async def _present(self) -> None:
        if self._presentation is None:
            self._presentation = presentation_of(
                self._store,
                client_address=self._client_address,
                replication_address=self._replication_address,
                config=self._config,
            )
        result = await self._controllers.request(self._presentation.store)
        if result.get("reason") not in WAITS:
            raise refused(result)
        for part in self._presentation.more:
            if part.first + len(part.topics) > result.get("topics_shown", 0):
                result = await self._controllers.request(part)
                if result.get("reason") != "RECOVERY_NEEDED":  # decided, or forgotten
                    log.warning("topics_not_shown", extra={"first": part.first, "result": result})
                    return


def refused(result: Mapping[str, Any]) -> ConfigError:
    """What a definite refusal of this broker tells its operator."""
    return ConfigError(
        f"the controllers refused this broker: {result.get('detail', result)} "
        f"({result.get('reason')})"
    )


def presentation_of(
    store: Store, *, client_address: str, replication_address: str, config: BrokerConfig
) -> Presentation:
    """Reads the log up to its end: blocking. Raises CorruptLogError, StorageError."""
    known = store.identity.identity
    assert known.cluster_id is not None, "it never belonged to any cluster"
    assert known.replica_id is not None, known
    commit_log = store.log
    is_damaged = commit_log.damage is not None or store.lost_state is not None
    # Installed state without the log that belongs to it is no base for a group either (R14).
    is_damaged = is_damaged or commit_log.base > commit_log.end
    projections = store.projections if is_damaged else _folded_to_end(store)
    topics = [
        PresentedTopic(topic=record.topic, topic_id=record.topic_id, queues=record.queues)
        for _, record in sorted(projections.topics.items())
    ]
    first, *others = parts_of(topics)
    presented = PresentStore(
        group=known.group,
        cluster_id=known.cluster_id,
        store_id=known.store_id,
        replica_id=known.replica_id,
        incarnation=known.incarnation,
        client_address=client_address,
        replication_address=replication_address,
        epoch=store.identity.epoch,
        last_epoch=commit_log.epochs.last_epoch,
        start=commit_log.start,
        end=commit_log.end,
        confirm=commit_log.confirm,
        topics=first,
        topics_to_come=len(topics) - len(first),
        topic_id_max=max(projections.topic_ids(), default=0),
        is_learner=config.is_learner,
        is_unclean=known.is_unclean,
        is_suspect=store.is_suspect,
        is_damaged=is_damaged,
        leases_ms=longest_leases_ms(config.lock_lease_ms),
    )
    more, count = [], len(first)
    for part in others:
        more.append(
            PresentTopics(
                group=known.group,
                store_id=known.store_id,
                incarnation=known.incarnation,
                first=count,
                topics=part,
            )
        )
        count += len(part)
    return Presentation(presented, tuple(more))


def parts_of(topics: Iterable[PresentedTopic]) -> Iterator[tuple[PresentedTopic, ...]]:
    """All of them in turn; at least one part."""
    part: list[PresentedTopic] = []
    size = 0
    for topic in topics:
        topic_bytes = len(topic.topic) + TOPIC_BYTES_MAX
        if part and size + topic_bytes > PART_BYTES_MAX:
            yield tuple(part)
            part, size = [], 0
        part.append(topic)
        size += topic_bytes
    yield tuple(part)


def _folded_to_end(store: Store) -> Projections:
    """As a master folds its whole tail (R28): what lies above our own confirm may be confirmed,
    and a topic that the controllers do not hear of counts as deleted (R35).

    A copy: the store's own state stays at confirm.
    """
    projections = Projections.restore(store.projections.snapshot())
    fold(store.log, projections, store.log.end)
    return projections
