"""Offers a store to controllers that do not know its group, for recovery (R18).

They have lost their folders, or forgot the group. The store is shown and waits: nothing of it is
changed, and it serves nobody, until an operator has recovered the group from it or from another.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from paceline.errors import ConfigError
from paceline.platform.runtime import pause
from paceline.wire.session_commands import BrokerCommand, PresentedTopic, PresentStore
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
PRESENTATION_BYTES_MAX = 960 * 1024
"""As an entry of the controllers' log: 1 MiB at most, and the envelope comes on top."""
WAITS = ("RECOVERY_NEEDED", "GROUP_KNOWN")
"""Answers to a presentation after which the registration is repeated."""


class Controllers(Protocol):
    """The sessions with them, as far as they are used here."""

    async def request(self, command: BrokerCommand) -> dict[str, Any]: ...


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
        self._presentation: PresentStore | None = None
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
            self._presentation = present_store(
                self._store,
                client_address=self._client_address,
                replication_address=self._replication_address,
                config=self._config,
            )
            size = len(orjson.dumps(self._presentation.to_json()))
            if size > PRESENTATION_BYTES_MAX:  # the controllers would refuse it for ever
                raise ConfigError(
                    f"the store has {len(self._presentation.topics)} topics, {size} bytes of them: "
                    f"above {PRESENTATION_BYTES_MAX} it cannot be shown to controllers that do not "
                    "know its group; put a controller's old folder back"
                )
        result = await self._controllers.request(self._presentation)
        if result.get("reason") not in WAITS:
            raise refused(result)


def refused(result: Mapping[str, Any]) -> ConfigError:
    """What a definite refusal of this broker tells its operator."""
    return ConfigError(
        f"the controllers refused this broker: {result.get('detail', result)} "
        f"({result.get('reason')})"
    )


def present_store(
    store: Store, *, client_address: str, replication_address: str, config: BrokerConfig
) -> PresentStore:
    """Reads the log up to its end: blocking. Raises CorruptLogError, StorageError."""
    known = store.identity.identity
    assert known.cluster_id is not None, "it never belonged to any cluster"
    assert known.replica_id is not None, known
    commit_log = store.log
    is_damaged = commit_log.damage is not None or store.lost_state is not None
    # Installed state without the log that belongs to it is no base for a group either (R14).
    is_damaged = is_damaged or commit_log.base > commit_log.end
    projections = store.projections if is_damaged else _folded_to_end(store)
    topics = [projections.topics[key] for key in sorted(projections.topics)]
    return PresentStore(
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
        topics=tuple(
            PresentedTopic(topic=topic.topic, topic_id=topic.topic_id, queues=topic.queues)
            for topic in topics
        ),
        topic_id_max=max(projections.topic_ids(), default=0),
        is_learner=config.is_learner,
        is_unclean=known.is_unclean,
        is_suspect=store.is_suspect,
        is_damaged=is_damaged,
        leases_ms=longest_leases_ms(config.lock_lease_ms),
    )


def _folded_to_end(store: Store) -> Projections:
    """As a master folds its whole tail (R28): what lies above our own confirm may be confirmed,
    and a topic that the controllers do not hear of counts as deleted (R35).

    A copy: the store's own state stays at confirm.
    """
    projections = Projections.restore(store.projections.snapshot())
    fold(store.log, projections, store.log.end)
    return projections
