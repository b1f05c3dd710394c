"""What an asker is shown of the cluster view: the topics and groups that it may see.

Brokers and controllers are asked for it by each client, and for ten thousand topics it takes some
130 ms to make. So it is kept as text for each user, until the view or users and rights are others.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import Any, TypeAlias

import orjson

from paceline.security.access import Asker
from paceline.wire.cluster import ClusterView

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Of all texts together; those that were asked for last stay. Ten thousand topics are 0.9 MB."""
_LONG = ("topics", "consumer_groups")

Document: TypeAlias = dict[str, Any]
"""Of a view as JSON; its long parts are text already (`orjson.Fragment`)."""


class VisibleViews:
    """Of one node; for askers that have a view of their own (`Asker.has_own_view`)."""

    def __init__(self) -> None:
        self._versions: tuple[str, int, int] = ("", -1, -1)
        self._kept: OrderedDict[tuple[str, str, str], tuple[Document, int]] = OrderedDict()
        """By who asks, with the bytes of the text."""
        self._kept_bytes = 0

    def document(self, asker: Asker, view: ClusterView) -> Document:
        """The view with what the asker may see, and its default namespace; read only."""
        versions = (view.cluster_id, view.version, asker.access.version)
        if versions != self._versions:
            self._versions = versions
            self._kept.clear()
            self._kept_bytes = 0
        principal = asker.principal
        who = (principal.user, asker.access.source_of(principal), principal.namespace)
        if who in self._kept:
            self._kept.move_to_end(who)
            return self._kept[who][0]
        document, size = _made(visible(asker, view))
        self._kept[who] = document, size
        self._kept_bytes += size
        while self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._kept_bytes -= dropped
        return document


def visible(asker: Asker, view: ClusterView) -> ClusterView:
    """What `VisibleViews` keeps the text of."""
    if asker.sees_less:
        view = view.limited(sees_topic=asker.sees_topic, sees_group=asker.sees_group)
    return replace(view, namespace=asker.principal.namespace)


def _made(view: ClusterView) -> tuple[Document, int]:
    document, size = view.to_json(), 0
    for name in _LONG:
        text = orjson.dumps(document[name])
        document[name], size = orjson.Fragment(text), size + len(text)
    return document, size
