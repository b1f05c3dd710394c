"""Pure: the published view as brokers and clients are sent it: whole, or what changed in it."""

import orjson

from paceline.wire.cluster import ClusterView
from paceline.wire.session import view_changes_message, view_message
from paceline.wire.views.changes import ViewChanges
from paceline.wire.views.scope import Scope
from paceline.wire.views.texts import ViewTexts
from paceline_controller.state import Machine
from paceline_controller.state.changes import Changed

BODIES_MAX = 64
"""Kept of one version. Most receivers have the one before; each other one costs its changes."""


class ViewMessages:
    """Of one controller; made once for all that are at the same version."""

    def __init__(self, machine: Machine, controllers: tuple[str, ...]) -> None:
        """`controllers`: as of `Machine.view`."""
        self._machine, self._controllers = machine, controllers
        self._texts = ViewTexts()
        self._view: ClusterView | None = None
        self._bodies: dict[int | None, tuple[bytes, bool]] = {}
        """Of `_view`: by the version of the receiver."""

    def view(self) -> ClusterView:
        """The present one."""
        return self._machine.view(self._controllers)

    def changes(self, since: int, scope: Scope | None = None) -> ViewChanges | None:
        """What leads from the view of that version to the present one, if that is known."""
        return self._machine.changes_since(since, self._controllers, scope)

    def changed(self, since: int) -> Changed | None:
        """As `changes`: names only."""
        return self._machine.changed_since(since)

    def concerns(self, since: int, scope: Scope) -> bool:
        """Whether a client of that scope is told of anything that changed since."""
        return self._machine.concerns(since, scope)

    def body_in(self, scope: Scope, since: int | None) -> bytes:
        """As `body`, of a scope."""
        changes = None if since is None else self.changes(since, scope)
        if changes is not None:
            return orjson.dumps(self._texts.changes(changes))
        return orjson.dumps(self._texts.part(scope.view(self.view())))

    def body(self, since: int | None) -> bytes:
        """JSON for who has the view of that version, or none: changes, or else the whole view."""
        return self._body(since)[0]

    def message(self, since: int | None) -> tuple[str, int]:
        """As `body`, as the message of a session; with the version that it leads to."""
        body, is_whole = self._body(since)
        text = view_message(body) if is_whole else view_changes_message(body)
        return text, self.view().version

    def _body(self, since: int | None) -> tuple[bytes, bool]:
        view = self.view()
        if view is not self._view or len(self._bodies) >= BODIES_MAX:
            self._view = view
            self._bodies.clear()
        if since not in self._bodies:
            self._bodies[since] = self._made(view, since)
        return self._bodies[since]

    def _made(self, view: ClusterView, since: int | None) -> tuple[bytes, bool]:
        changes = None if since is None else self.changes(since)
        if changes is not None:
            return orjson.dumps(self._texts.changes(changes)), False
        if since is not None:
            return self._body(None)
        return orjson.dumps(self._texts.whole(view)), True
