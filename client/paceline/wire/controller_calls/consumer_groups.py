"""Pure: requests about consumer groups and their settings."""

from typing import Any

from paceline.wire.calls.request import Answer, Request, Route
from paceline.wire.consumer_groups import SettingsChanges
from paceline.wire.controller_calls.base import Read, Written
from paceline.wire.rights import CREATE, DELETE, GET, KNOWN_USER, SUB, UPDATE, on_group


class ConsumerGroup(Answer, kw_only=True):
    """One consumer group."""

    group: str
    settings: dict[str, Any]
    """docs/features/topics.md lists them."""


class WrittenConsumerGroup(ConsumerGroup, kw_only=True):
    """The group as the command left it."""

    version: int
    """Of the cluster view that shows it."""


class ConsumerGroupList(Answer, kw_only=True):
    """The consumer groups, by name."""

    version: int
    groups: list[ConsumerGroup]


class ListConsumerGroups(Read[ConsumerGroupList]):
    """All consumer groups."""

    routes = (Route("GET", "/v1/consumer-groups"),)
    needs = KNOWN_USER
    lists_all = ("groups",)


class GetConsumerGroup(Read[ConsumerGroup], kw_only=True):
    """One consumer group. GROUP_NOT_FOUND."""

    routes = (Route("GET", "/v1/consumer-groups/{group}"),)
    needs = (on_group(SUB, GET),)
    group: str


class CreateConsumerGroup(Request[WrittenConsumerGroup], kw_only=True):
    """Create a consumer group, with `%RETRY%group` and `%DLQ%group`. GROUP_EXISTS."""

    routes = (Route("POST", "/v1/consumer-groups", 201),)
    needs = (on_group(CREATE),)
    group: str
    settings: SettingsChanges | None = None


class AlterConsumerGroup(Request[WrittenConsumerGroup], SettingsChanges, kw_only=True):
    """Change settings of a consumer group; what is left out stays. GROUP_NOT_FOUND."""

    routes = (Route("PUT", "/v1/consumer-groups/{group}"),)
    needs = (on_group(UPDATE),)
    group: str


class DeleteConsumerGroup(Request[Written], kw_only=True):
    """Delete a consumer group, with its retry and dead letter topics and all that it has at
    brokers. GROUP_NOT_FOUND."""

    routes = (Route("DELETE", "/v1/consumer-groups/{group}"),)
    needs = (on_group(DELETE),)
    group: str
