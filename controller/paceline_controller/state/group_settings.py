"""Pure: settings of a broker group as a command or a request gives them."""

from collections.abc import Mapping
from typing import Any

from paceline.errors import BadRequestError
from paceline.wire.cluster import GroupSettings
from paceline.wire.commands import MEMBERS_MAX
from paceline.wire.fields import Fields


def with_settings(document: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A command's document with the group settings in one field read. Raises BadRequestError."""
    return {**document, field: read_settings(document.get(field))}


def read_settings(document: object) -> GroupSettings:
    """Checked group settings from outside. Raises BadRequestError."""
    fields = Fields(document, name="settings")
    settings = GroupSettings(
        total_replicas=fields.integer("total_replicas", low=1, high=MEMBERS_MAX),
        min_in_sync_replicas=fields.integer("min_in_sync_replicas", low=1, high=MEMBERS_MAX),
        durability=fields.text("durability", pattern="fsync|memory"),
        all_ack_in_sync_state_set=fields.flag("all_ack_in_sync_state_set"),
        in_sync_replicas=fields.integer("in_sync_replicas", low=1, high=MEMBERS_MAX),
        enable_auto_in_sync_replicas=fields.flag("enable_auto_in_sync_replicas"),
        enable_slave_acting_master=(  # commands of an older version do not say it
            not fields.has("enable_slave_acting_master")
            or fields.flag("enable_slave_acting_master")
        ),
        enable_elect_unclean_master=(
            fields.has("enable_elect_unclean_master") and fields.flag("enable_elect_unclean_master")
        ),
    )
    fields.done()
    if settings.min_in_sync_replicas > settings.total_replicas:
        raise BadRequestError(
            f"min_in_sync_replicas ({settings.min_in_sync_replicas}) must not be above "
            f"total_replicas ({settings.total_replicas})",
            field="min_in_sync_replicas",
        )
    if settings.in_sync_replicas > settings.total_replicas:
        raise BadRequestError(
            f"in_sync_replicas ({settings.in_sync_replicas}) must not be above "
            f"total_replicas ({settings.total_replicas})",
            field="in_sync_replicas",
        )
    return settings
