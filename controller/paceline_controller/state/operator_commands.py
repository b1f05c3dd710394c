"""Pure: commands by which operators repair what the controllers have on record."""

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.types import GroupName, ReplicaId
from paceline.wire.cluster import GroupSettings
from paceline.wire.fields import Fields
from paceline.wire.session_commands import NAME_PATTERN, TOKEN_PATTERN, replica
from paceline_controller.state.model import read_settings

CONTROLLERS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveReplica:
    """Forget a replica whose store is gone for good; a member only if `is_forced`."""

    kind: ClassVar[str] = "remove_replica"
    group: GroupName
    replica_id: ReplicaId
    is_forced: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "group": self.group,
            "replica_id": self.replica_id,
            "is_forced": self.is_forced,
        }

    @classmethod
    def read(cls, fields: Fields) -> "RemoveReplica":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            replica_id=replica(fields, "replica_id"),
            is_forced=fields.has("is_forced") and fields.flag("is_forced"),  # older: never
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveGroup:
    """Forget a broker group and its replicas; with queues of topics only if `is_forced`."""

    kind: ClassVar[str] = "remove_group"
    group: GroupName
    is_forced: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "group": self.group, "is_forced": self.is_forced}

    @classmethod
    def read(cls, fields: Fields) -> "RemoveGroup":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            is_forced=fields.flag("is_forced"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWritePermission:
    """Whether clients may send to a broker group (RocketMQ's wipeWritePermOfBroker)."""

    kind: ClassVar[str] = "set_write_permission"
    group: GroupName
    is_writable: bool

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "group": self.group, "is_writable": self.is_writable}

    @classmethod
    def read(cls, fields: Fields) -> "SetWritePermission":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            is_writable=fields.flag("is_writable"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverGroup:
    """Put a broker group on record that only its stores know, led by the one named (R18)."""

    kind: ClassVar[str] = "recover_group"
    group: GroupName
    store_id: str
    """Of those that presented themselves: what it holds is what the group holds."""
    gives_up_missing: bool
    """The operator accepts that records may be lost, and what that costs (R21)."""
    defaults: GroupSettings
    """The proposer's, for the group."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "group": self.group,
            "store_id": self.store_id,
            "gives_up_missing": self.gives_up_missing,
            "defaults": self.defaults.to_json(),
        }

    @classmethod
    def read(cls, fields: Fields) -> "RecoverGroup":
        return cls(
            group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
            store_id=fields.text("store_id", pattern=TOKEN_PATTERN),
            gives_up_missing=fields.flag("gives_up_missing"),
            defaults=read_settings(fields.any("defaults")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetStore:
    """Take a store that presented itself off the record: the operator will not recover it."""

    kind: ClassVar[str] = "forget_store"
    store_id: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "store_id": self.store_id}

    @classmethod
    def read(cls, fields: Fields) -> "ForgetStore":
        return cls(store_id=fields.text("store_id", pattern=TOKEN_PATTERN))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetControllers:
    """Where the voters of a committed generation listen for clients (docs/adr/0011)."""

    kind: ClassVar[str] = "set_controllers"
    generation: int
    addresses: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "generation": self.generation,
            "addresses": list(self.addresses),
        }

    @classmethod
    def read(cls, fields: Fields) -> "SetControllers":
        addresses = fields.any("addresses")
        if not isinstance(addresses, list) or not 1 <= len(addresses) <= CONTROLLERS_MAX:
            raise fields.wrong("addresses", "a list of 1 to 16 addresses", addresses)
        for address in addresses:
            Fields({"address": address}, name="controllers").address("address")
        return cls(generation=fields.integer("generation", low=1), addresses=tuple(addresses))
