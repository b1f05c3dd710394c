"""Pure: views and changes of them as JSON whose entries are text already, made once for each entry.

A view of 10,000 topics as text is a join of texts that are at hand; only what has changed is made.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import orjson

from paceline.wire.cluster import ClusterView, GroupView, TopicView
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.views.changes import ViewChanges

Document: TypeAlias = dict[str, Any]
"""For `orjson.dumps`: its lists of entries are text (`orjson.Fragment`)."""


class ViewTexts:
    """Of one node's views, one after the other."""

    def __init__(self) -> None:
        self._groups = _Entries(GroupView.to_json)
        self._topics = _Entries(TopicView.packed)
        self._consumer_groups = _Entries(ConsumerGroupView.packed)

    def whole(self, view: ClusterView) -> Document:
        """As `ClusterView.to_json`."""
        return {
            **view.head_json(),
            "groups": self._groups.whole(view.groups),
            "topics": self._topics.whole(view.topics),
            "consumer_groups": self._consumer_groups.whole(view.consumer_groups),
        }

    def part(self, view: ClusterView) -> Document:
        """As `whole`, of a view that lacks entries."""
        return {
            **view.head_json(),
            "groups": self._groups.whole(view.groups),
            "topics": self._topics.part(view.topics),
            "consumer_groups": self._consumer_groups.part(view.consumer_groups),
        }

    def changes(self, changes: ViewChanges) -> Document:
        """As `ViewChanges.to_json`."""
        return {
            **changes.head_json(),
            "groups": self._groups.changed(changes.groups),
            "topics": self._topics.changed(changes.topics),
            "consumer_groups": self._consumer_groups.changed(changes.consumer_groups),
        }


class _Entries:
    """Texts by name, each with the entry that it is of."""

    def __init__(self, to_json: Callable[[Any], Mapping[str, Any]]) -> None:
        self._to_json = to_json
        self._kept: dict[str, tuple[object, bytes]] = {}

    def whole(self, entries: Mapping[Any, object]) -> orjson.Fragment:
        if len(self._kept) > len(entries):
            self._kept = {name: kept for name, kept in self._kept.items() if name in entries}
        return self.part(entries)

    def part(self, entries: Mapping[Any, object]) -> orjson.Fragment:
        return _list(self._text(name, entry) for name, entry in entries.items())

    def changed(self, entries: Mapping[Any, object]) -> orjson.Fragment:
        texts = []
        for name, entry in entries.items():
            if entry is None:
                self._kept.pop(name, None)
            else:
                texts.append(self._text(name, entry))
        return _list(texts)

    def _text(self, name: str, entry: object) -> bytes:
        of, text = self._kept.get(name, (None, b""))
        if of is not entry:
            text = orjson.dumps(self._to_json(entry))
            self._kept[name] = entry, text
        return text


def _list(texts: Any) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(texts) + b"]")
