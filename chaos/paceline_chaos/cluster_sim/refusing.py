"""A hook of brokers in worlds: it refuses each batch with a message that is marked so (S41)."""

from paceline.errors import ForbiddenError
from paceline.platform.ports import Buffer
from paceline.records.decode import BatchView
from paceline.records.header import COLUMN_PROPERTY, BatchHeader
from paceline_broker.service.hooks import Hooks
from paceline_chaos.history.hooked import REFUSED

BROKER = "broker"
"""Value of that property: brokers refuse it."""
NAME = "paceline_chaos.cluster_sim.refusing:register"
"""As a broker's configuration names it."""


def register(hooks: Hooks) -> None:
    """What such a name stands for."""
    hooks.before_put(_refuse)


def _refuse(header: BatchHeader, batch: Buffer) -> None:
    if header.columns & COLUMN_PROPERTY:
        for properties in BatchView(batch).properties():
            if properties.get(REFUSED) == BROKER:
                raise ForbiddenError("not stored: it is marked to be refused")
