"""Pure: results of commands."""

from typing import Any

from paceline.types import ConsumerGroupName, TopicName
from paceline.wire.cluster import HISTORY_ENTRIES_MAX
from paceline_controller.state.changes import Changed
from paceline_controller.state.model import Group


class RefusedError(Exception):
    """A command that does not fit the state: becomes {"ok": false, ...}, leaves the machine's door
    never. Raised before anything was changed."""

    def __init__(self, reason: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.members = reason, detail, members


class Outcome:
    """Result and events of one command, collected while it is applied."""

    def __init__(self, *, at: int) -> None:
        """`at` is the replicated time."""
        self.at = at
        self.result: dict[str, Any] = {"ok": True}
        self.events: list[dict[str, Any]] = []
        self.changed: Changed | None = None
        """What changes in the view, and with that the version; None: nothing."""

    def publish(self, group: Group) -> None:
        """A group changes in the view, or leaves it; its floor goes out along with it."""
        group.view_floor = group.confirm_floor
        self._publish().groups.add(group.group)

    def publish_topic(self, topic: TopicName) -> None:
        """A topic changes in the view, or leaves it."""
        self._publish().topics.add(topic)

    def publish_consumer_group(self, group: ConsumerGroupName) -> None:
        """A consumer group changes in the view, or leaves it."""
        self._publish().consumer_groups.add(group)

    def publish_rights(self) -> None:
        """Users and rights change: users may be shown others."""
        self._publish().are_rights = True

    def publish_head(self) -> None:
        """The view changes, but none of its topics and groups."""
        self._publish()

    def publish_all(self) -> None:
        """Any entry of the view may change."""
        self._publish().is_all = True

    def _publish(self) -> Changed:
        self.changed = self.changed or Changed()
        return self.changed

    def note(self, kind: str, **members: Any) -> None:
        """An event for the shell: it logs it."""
        self.events.append({"kind": kind, **members})

    def record(self, group: Group, kind: str, **members: Any) -> None:
        """An event that also goes to the group's history; the view changes."""
        self.note(kind, group=group.group, **members)
        group.history.append({"kind": kind, "at": self.at, **members})
        del group.history[:-HISTORY_ENTRIES_MAX]
        self.publish(group)

    def refuse(self, reason: str, detail: str, **members: Any) -> None:
        """A refusal that did change something (a removal, R9, R16)."""
        self.result = {"ok": False, "reason": reason, "detail": detail, **members}

    def refuse_untouched(self, refusal: RefusedError) -> None:
        """A refusal that was decided before anything was changed."""
        assert not self.events, refusal.reason
        assert self.changed is None, refusal.reason
        self.refuse(refusal.reason, refusal.detail, **refusal.members)


def numbers(group: Group) -> dict[str, Any]:
    """What every answer about a group carries: its epochs and its set."""
    return {
        "group": group.group,
        "master_epoch": group.master_epoch,
        "set_epoch": group.set_epoch,
        "sync_state_set": sorted(group.sync_state_set),
    }
