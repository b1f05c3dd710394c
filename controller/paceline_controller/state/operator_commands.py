"""Pure: commands by which operators repair what the controllers have on record."""

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.types import GroupName, ReplicaId
from paceline.wire.fields import Fields
from paceline.wire.session_commands import NAME_PATTERN, replica


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
