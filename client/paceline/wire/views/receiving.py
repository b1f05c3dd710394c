"""Pure: the newest view a client has, out of what several nodes answer.

A view counts only if its version is larger and its cluster id the same (R38). A controller that
knows what changed since tells only that; if it does not follow the view that is here, the whole
view is asked for. If the client uses another topic, the present view does not show it, and the next
answer counts at the same version too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.wire.cluster import ClusterView
from paceline.wire.views.changes import SINCE, ViewChanges
from paceline.wire.views.scope import Scope


@dataclass(frozen=True, slots=True)
class Ask:
    """What a node is asked for."""

    scope: Scope | None
    """None: everything."""
    since: int | None
    """Wait for a view above this version. None: there is none here."""
    takes_changes: bool
    is_news: bool
    """What is here is all that is wanted: the answer may take its time."""


class ReceivedView:
    """Of one client."""

    def __init__(self, to_own: Callable[[ClusterView], ClusterView]) -> None:
        """`to_own`: a view by the names of the client."""
        self._to_own = to_own
        self.view: ClusterView | None = None
        self.wanted: Scope | None = Scope()
        """It only grows: None is everything."""
        self._shown: Scope | None = Scope()
        """What the view has."""
        self._has_gap = False
        """The next node that is asked gives a whole view."""

    def want(self, scope: Scope | None) -> None:
        """This too, or everything."""
        if self.wanted is not None:
            self.wanted = None if scope is None else self.wanted.with_(scope)

    @property
    def is_complete(self) -> bool:
        """It shows all that is wanted."""
        return self.view is not None and _covers(self._shown, self.wanted)

    def ask(self) -> Ask:
        """What the next node is to be asked for."""
        view = self.view
        if view is None:
            return Ask(self.wanted, None, takes_changes=False, is_news=False)
        if not self.is_complete:
            return Ask(self.wanted, view.version - 1, takes_changes=False, is_news=False)
        return Ask(self._shown, view.version, takes_changes=not self._has_gap, is_news=True)

    def read(self, document: Mapping[str, Any], ask: Ask) -> ClusterView | None:
        """What a node's answer makes of the view, for `take`; None: nothing. BadRequestError."""
        if SINCE not in document:
            self._has_gap = False
            whole = ClusterView.from_json(document)
            return self._to_own(whole if ask.scope is None else ask.scope.view(whole))
        changes, view = ViewChanges.from_json(document), self.view
        if view is None or changes.is_old(view):
            return None
        if not changes.follows(view):
            self._has_gap = True
            return None
        return (changes if ask.scope is None else ask.scope.changes(changes)).applied_to(view)

    def is_foreign(self, view: ClusterView) -> bool:
        """Of another cluster, unless its operator has recovered ours there (R18)."""
        present = self.view
        return present is not None and present.cluster_id not in (*view.replaces, view.cluster_id)

    def take(self, view: ClusterView, scope: Scope | None) -> bool:
        """Keep a view that shows that scope; False if it is not newer (R38)."""
        present = self.view
        if present is not None:
            if self.is_foreign(view) or not _covers(scope, self._shown):
                return False
            oldest = present.version + (scope == self._shown)
            if present.cluster_id not in view.replaces and view.version < oldest:
                return False
        self.view, self._shown = view, scope
        return True


def _covers(scope: Scope | None, other: Scope | None) -> bool:
    return scope is None or (other is not None and scope.covers(other))
