"""Pure: commands by which operators repair what the controllers have on record."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from msgspec import Meta

from paceline.wire.cluster import GroupSettings
from paceline.wire.commands import Address, Command, Group, Replica, Token
from paceline.wire.fields import I64_MAX
from paceline_controller.state.group_settings import with_settings

CONTROLLERS_MAX = 16


class RemoveReplica(Command, frozen=True, kw_only=True):
    """Forget a replica whose store is gone for good; a member only if `is_forced`."""

    group: Group
    replica_id: Replica
    is_forced: bool = False


class RemoveGroup(Command, frozen=True, kw_only=True):
    """Forget a broker group and its replicas; with queues of topics only if `is_forced`."""

    group: Group
    is_forced: bool = False


class SetWritePermission(Command, frozen=True, kw_only=True):
    """Whether clients may send to a broker group (RocketMQ's wipeWritePermOfBroker)."""

    group: Group
    is_writable: bool


class RecoverGroup(Command, frozen=True, kw_only=True):
    """Put a broker group on record that only its stores know, led by the one named (R18)."""

    group: Group
    store_id: Token
    """Of those that presented themselves: what it holds is what the group holds."""
    gives_up_missing: bool
    """The operator accepts that records may be lost, and what that costs (R21)."""
    defaults: GroupSettings
    """The proposer's, for the group."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        return super().read(with_settings(document, "defaults"))


class ForgetStore(Command, frozen=True, kw_only=True):
    """Take a store that presented itself off the record: the operator will not recover it."""

    store_id: Token


class SetControllers(Command, frozen=True, kw_only=True):
    """Where the voters of a committed generation listen for clients (docs/adr/0011)."""

    generation: Annotated[int, Meta(ge=1, le=I64_MAX)]
    addresses: Annotated[tuple[Address, ...], Meta(min_length=1, max_length=CONTROLLERS_MAX)]
