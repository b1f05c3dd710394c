"""What a node decides by: who asks, and whether he may.

One `Access` in each broker and controller. It is given each newer state of users and rights, and
keeps what it has decided until then: a decision costs a look into a table. Who asks shows an access
key and its secret (`Authorization: Bearer KEY.SECRET`), or is the user `anonymous`.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from paceline.errors import (
    BadNameError,
    NotYetAvailableError,
    PacelineError,
    UnauthenticatedError,
)
from paceline.platform.ports import Clock
from paceline.platform.telemetry import strangers
from paceline.security.audit import Audit, Decided
from paceline.security.decide import Rules, Verdict, either, refusal, refusal_of_id
from paceline.security.delegation import Delegation
from paceline.security.identity import Identities, Principal, Signed, of_delegation
from paceline.security.key_uses import KeyUses
from paceline.security.quotas import QUOTA_ERRORS, Quotas, UserQuota
from paceline.security.tokens import Tokens
from paceline.wire.calls.request import Request
from paceline.wire.names import namespace_of
from paceline.wire.rights import (
    SEE_GROUP,
    SEE_TOPIC,
    TRANSACT,
    Action,
    Decision,
    Need,
    Needs,
    Resource,
    ResourceType,
    named,
    on_topic,
    topic_resource,
)
from paceline.wire.users import ANONYMOUS, Mode, Security, User, UserType

log = logging.getLogger("paceline.security")

VERDICTS_MAX = 10_000
"""Decisions that are kept; then all are made anew."""
TOLD_OF_USER_MAX = 200
"""Refusals of a user that the log tells, of one version: whoever tries names does not fill the
disk, and silences nobody but himself."""
ASKED_NAME_LENGTH_MAX = 255
"""A longer name is refused: decisions and refusals keep it. What exists has at most 127 characters
and perhaps a prefix (`wire.names`)."""
GRANTED_MAX = 10_000
"""What streams of one user from one address may have been allowed; with more they are closed when
rights change."""
_WHO = (
    "this cluster has users and rights: show an access key (PACELINE_ACCESS_KEY and"
    " PACELINE_SECRET_KEY, or `paceline login`)"
)


_NOT_CURRENT = (
    "this node has just started and does not know yet who may do what, because it has not caught up"
    " with a leader: ask another node, or again"
)
ASKING: ContextVar[str | None] = ContextVar("asking", default=None)
"""The user on whose behalf a request is carried out, if quotas bound it: what is made is his."""
_SEES = {ResourceType.TOPIC: SEE_TOPIC, ResourceType.GROUP: SEE_GROUP}
Grant: TypeAlias = tuple[Resource, tuple[Action, ...]]
"""One of these actions on a resource."""


class Granted(set[Grant]):
    """What was allowed so far. Streams of one user from one address share it, so that a change of
    rights costs no more with many of them."""

    judged: tuple[Security | None, bool] = (None, True)
    """Some users and rights, and whether all of it is allowed by them."""


class Access:
    """Users and rights, as this node knows them."""

    def __init__(
        self,
        clock: Clock,
        *,
        topic_name: Callable[[int], str] = str,
        tokens: Tokens | None = None,
        is_current: Callable[[], bool] = lambda: True,
        not_current: str = _NOT_CURRENT,
        is_closed: bool = False,
    ) -> None:
        """`topic_name`: of a topic id that a request names; it raises TopicNotFoundError.
        `is_current`: whether this node knows users and rights; before, nobody may do anything, and
        is told `not_current`.
        `is_closed`: rights are enforced here whatever the cluster says, and before it has said it.
        """
        self._clock = clock
        self._identities = Identities(clock, tokens or Tokens())
        self._is_current, self._not_current = is_current, not_current
        self.is_closed = is_closed
        self.topic_name = topic_name
        self._security = Security()
        self._rules = Rules(self._security)
        self._verdicts: dict[tuple[str, str, Resource, tuple[Action, ...]], Verdict] = {}
        self._told: dict[str, set[tuple[str, Resource, tuple[Action, ...]]]] = {}
        """By user."""
        self._listeners: list[Callable[[], None]] = []
        self.granted: WeakValueDictionary[tuple[str, str], Granted] = WeakValueDictionary()
        """By user and source."""
        self.quotas = Quotas(clock.monotonic_ms)
        self.audit = Audit(clock)
        self.refused_count = 0
        self.would_refuse_count = 0
        self.unauthenticated_count = 0

    @property
    def security(self) -> Security:
        """For reading."""
        return self._security

    @property
    def version(self) -> int:
        return self._security.version

    @property
    def key_uses(self) -> KeyUses:
        return self._identities.key_uses

    @property
    def mode(self) -> Mode:
        """What counts at this node."""
        return Mode.ON if self.is_closed else self._security.mode

    @property
    def is_on(self) -> bool:
        """Rights are looked at: enforced, or tried (`is_enforced` false)."""
        return self.mode is not Mode.OFF

    @property
    def is_enforced(self) -> bool:
        return self.mode is Mode.ON

    def apply(self, security: Security) -> bool:
        """Take a newer state, or that of another cluster which has taken this node over (R18);
        False: it is none."""
        is_same = security.cluster_id == self._security.cluster_id
        if is_same and security.version <= self._security.version:
            return False
        self._security = security
        self._rules = Rules(security)
        self._verdicts.clear()
        self._told.clear()
        self._identities.apply(security)
        self.quotas.apply(security)
        for listener in self._listeners:
            listener()
        return True

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after each change, for the life of this object."""
        self._listeners.append(listener)

    # -- who asks ---------------------------------------------------------------------------------

    def authenticate(self, authorization: str | None, *, source: str) -> Principal:
        """Who shows that header. UnauthenticatedError unless the key is a user's and counts now."""
        if authorization is None:
            return Principal(ANONYMOUS, source)
        return self._known(partial(self._identities.of_header, authorization, source), source)

    def authenticate_certificate(self, users: Collection[str], *, source: str) -> Principal:
        """Who shows a certificate of the cluster's authority for these users.

        UnauthenticatedError unless it is one, and there is such a user.
        """
        if not users:
            return Principal(ANONYMOUS, source)
        return self._known(partial(self._identities.of_certificate, users, source), source)

    def authenticate_delegated(self, read: Callable[[], Delegation], *, source: str) -> Principal:
        """On whose behalf a gateway comes; `read` says it, or raises UnauthenticatedError.

        UnauthenticatedError unless it counts and the user and the key do.
        """
        return self._known(lambda: of_delegation(read()), source)

    def authenticate_signature(self, signed: Callable[[], Signed], *, source: str) -> Principal:
        """Who has signed a request with his secret key; `signed` reads what was shown, or raises
        UnauthenticatedError. Which door it came through is the caller's to say.

        UnauthenticatedError unless the key is kept to sign, has made the signature and counts now.
        """
        return self._known(lambda: self._identities.of_signature(signed(), source), source)

    def _known(self, find: Callable[[], Principal], source: str) -> Principal:
        """Who `find` says it is; in a dry run nobody, if it raises. While rights are off nobody,
        who has the default namespace of whoever it is."""
        try:
            principal = find()
            if self.is_on:
                self._identities.check(principal)
            user = self._security.users.get(principal.user, User())
            found = principal if self.is_on else Principal(ANONYMOUS, principal.source)
            return found._replace(namespace=user.namespace)
        except UnauthenticatedError as error:
            if not self.is_on or not self._is_current():
                return Principal(ANONYMOUS, source)  # perhaps a user that this node will know
            self.unauthenticated_count += 1
            strangers.warning("not_authenticated", extra={"source": source, "why": error.message})
            if self.is_enforced:
                raise
            return Principal(ANONYMOUS, source)

    def check_valid(self, principal: Principal) -> None:
        """UnauthenticatedError once the user or the key of a principal does not count any more; in
        a dry run that is only told and counted."""
        self._known(lambda: principal, principal.source)

    # -- whether he may ---------------------------------------------------------------------------

    def check(
        self,
        principal: Principal,
        needs: Needs,
        field: Callable[[str], object],
        granted: Granted | None = None,
    ) -> None:
        """Raise unless all `needs` are met; `field` gives what the request has in a field, and
        what was allowed is added to `granted`.

        UnauthenticatedError, NotAuthorizedError, BadNameError for a name that is too long,
        NotYetAvailableError, and what `topic_name` raises.
        """
        if needs and not principal.is_node:
            self.check_current()
        if not self.is_on:
            return
        for need in needs:
            if need.type is ResourceType.ANY:
                self._check_known(principal)
                continue
            for resource, topic_id in self._resources(need, field):
                self.require(principal, resource, need.actions, topic_id)
                if granted is not None and len(granted) < GRANTED_MAX:
                    granted.add((resource, need.actions))

    def check_current(self) -> None:
        """NotYetAvailableError before this node knows users and rights."""
        if not self._is_current():
            raise NotYetAvailableError(self._not_current)

    def require(
        self,
        principal: Principal,
        resource: Resource,
        actions: tuple[Action, ...],
        topic_id: int | None = None,
    ) -> None:
        """Raise NotAuthorizedError unless one of the actions is allowed; UnauthenticatedError for
        whoever shows nothing. `topic_id`: if the topic was named so; then a refusal does not tell
        its name to whoever may not see it."""
        verdict = self.verdict(principal, resource, actions)
        if verdict.is_allowed:
            return
        self._tell(principal, resource, actions, verdict)
        if not self.is_enforced:
            self.would_refuse_count += 1
            return
        self.refused_count += 1
        if topic_id is None or self.may(principal, resource, _SEES[resource.type]):
            refused = refusal(principal.user, resource, actions, verdict)
        else:
            refused = refusal_of_id(principal.user, topic_id, actions)
        if principal.user == ANONYMOUS:
            raise UnauthenticatedError(f"{_WHO}; {refused.message}", **refused.details)
        raise refused

    def may(self, principal: Principal, resource: Resource, actions: tuple[Action, ...]) -> bool:
        """Whether one of the actions is allowed: what lists show."""
        return not self.is_enforced or self.verdict(principal, resource, actions).is_allowed

    def verdict(
        self, principal: Principal, resource: Resource, actions: tuple[Action, ...]
    ) -> Verdict:
        """What the policies say, whether they are enforced or not."""
        if principal.is_node:
            return Verdict(True, "it is a node of this cluster")
        asked = (principal.user, self.source_of(principal), resource, actions)
        found = self._verdicts.get(asked)
        if found is None:
            found = self._rules.decide(principal.user, resource, actions, source=principal.source)
            if principal.user == ANONYMOUS:
                return found  # strangers do not push out what was decided for users
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            self._verdicts[asked] = found
        return found

    def source_of(self, principal: Principal) -> str:
        """Where it comes from, if what it may do depends on that; else empty."""
        return principal.source if self._rules.has_sources(principal.user) else ""

    def decided(
        self, principal: Principal, needs: Needs, field: Callable[[str], object]
    ) -> Decided:
        """What the audit says of a request: the first right that is lacking, or else the first."""
        if not self.is_on:
            return Decided(Decision.ALLOW, "rights were off")
        found: list[Decided] = []
        try:
            for need in needs:
                for resource, _ in self._resources(need, field):
                    verdict = self.verdict(principal, resource, need.actions)
                    decision = Decision.ALLOW if verdict.is_allowed else Decision.DENY
                    action = either(need.actions)
                    found.append(Decided(decision, verdict.why, action, str(resource)))
                    if not verdict.is_allowed:
                        return found[-1]
        except PacelineError as error:
            return Decided(Decision.ALLOW, error.message)  # of a topic that is not there
        return found[0] if found else Decided(Decision.ALLOW, "any user may")

    def _tell(
        self,
        principal: Principal,
        resource: Resource,
        actions: tuple[Action, ...],
        verdict: Verdict,
    ) -> None:
        """In the log, once for each version of users and rights; and once that no more are told."""
        refused = (principal.source, resource, actions)
        told = self._told.setdefault(principal.user, set())
        if refused in told or len(told) > TOLD_OF_USER_MAX:
            return
        told.add(refused)
        if len(told) > TOLD_OF_USER_MAX:
            log.warning(
                "refusals_not_told", extra={"user": principal.user, "told": TOLD_OF_USER_MAX}
            )
            return
        log.warning(
            "refused" if self.is_enforced else "would_be_refused",
            extra={
                "user": principal.user,
                "source": principal.source,
                "resource": str(resource),
                "actions": either(actions),
                "why": verdict.why,
            },
        )

    def _check_known(self, principal: Principal) -> None:
        if principal.user != ANONYMOUS or principal.is_node:
            return
        if ANONYMOUS in self._security.policies:
            return  # it may do something; what, each request is checked for
        if not self.is_enforced:
            self.would_refuse_count += 1
            return
        raise UnauthenticatedError(_WHO)

    def _resources(
        self, need: Need, field: Callable[[str], object]
    ) -> Iterable[tuple[Resource, int | None]]:
        """What a request is about; with a topic's id where it was named so."""
        if need.type is ResourceType.CLUSTER:
            yield Resource(ResourceType.CLUSTER, self._security.cluster_name), None
            return
        if need.type is ResourceType.ANY:
            return
        for name in dict.fromkeys(named(field(need.field))):
            topic_id = name if isinstance(name, int) else None
            text = self.topic_name(name) if isinstance(name, int) else name
            if len(text) > ASKED_NAME_LENGTH_MAX:
                raise BadNameError(f"a name has at most {ASKED_NAME_LENGTH_MAX} characters")
            if need.type is ResourceType.TOPIC:
                yield topic_resource(text), topic_id
            else:
                yield Resource(need.type, text), topic_id


class Asker(NamedTuple):
    """Who asks, and what decides: handed to whatever checks by the content of a request."""

    access: Access
    principal: Principal
    granted: Granted | None = None
    """What it was allowed so far, if somebody wants to know whether that still holds later."""

    @property
    def bounded_user(self) -> str | None:
        """The user whom quotas bound; None: rights are not enforced, or it is a node."""
        is_bounded = self.access.is_enforced and not self.principal.is_node
        return self.principal.user if is_bounded else None

    @property
    def quota(self) -> UserQuota | None:
        """What the user may take of this node; None: no limit."""
        return self.quota_of("")

    def quota_of(self, client_id: str) -> UserQuota | None:
        """As `quota`, of the client with that id; empty: it is not known."""
        user = self.bounded_user
        return None if user is None else self.access.quotas.of(user, client_id)

    def namespace_quota(self, topic: str) -> UserQuota | None:
        """What all may take together who send to or read the topics of this one's namespace; None:
        no limit. It counts also while rights are off."""
        quotas = self.access.quotas
        namespace = namespace_of(topic) if quotas.limits_namespaces else ""
        return quotas.of_namespace(namespace, self.principal.user) if namespace else None

    def throttled(self, error: PacelineError) -> None:
        """Count for the user that a quota has refused something, if that is what the error says."""
        kind = error.details.get("kind") if isinstance(error, QUOTA_ERRORS) else None
        if isinstance(kind, str) and (user := self.bounded_user) is not None:
            self.access.quotas.throttle(user, kind)

    def still_holds(self) -> bool:
        """Whether it is still known, and all that was `granted` would be again."""
        access, principal = self.access, self.principal
        if not access.is_enforced:
            return len(self.granted or ()) < GRANTED_MAX
        try:
            access.check_valid(principal)
        except UnauthenticatedError:
            return False
        granted = self.granted or Granted()
        if granted.judged[0] is not access.security:
            holds = len(granted) < GRANTED_MAX and all(
                access.may(principal, *each) for each in granted
            )
            granted.judged = (access.security, holds)
        return granted.judged[1]

    def check(self, needs: Needs, field: Callable[[str], object]) -> None:
        """As `Access.check`."""
        self.access.check(self.principal, needs, field, self.granted)

    def check_request(self, request: Request[Any]) -> None:
        """Raise unless the needs of a request are met."""
        if self.access.is_on:
            self.check(request.needed(), partial(getattr, request))

    def check_again(self, request: Request[Any], *, version: int) -> None:
        """As `check_request`, if rights have changed since `version`: what waited may have found
        something that is not the asker's any more."""
        if version != self.access.version:
            self.access.check_valid(self.principal)
            self.check_request(request)

    def check_topic(self, topic: str | int, *actions: Action) -> None:
        """Raise unless one of the actions is allowed on a topic, by its name or id."""
        self.check_topics((topic,), *actions)

    def check_topics(self, topics: Iterable[str | int], *actions: Action) -> None:
        """As `check_topic`, of several."""
        if self.access.is_on:
            self.access.check_valid(self.principal)
            self.check((on_topic(*actions),), lambda field: topics)

    def check_producer_group(self, group: str) -> None:
        """Raise unless it may begin transactions of which producers of that group are asked."""
        if self.access.is_on:
            self.check(TRANSACT, lambda field: group)

    @property
    def sees_less(self) -> bool:
        """There may be topics and groups that lists do not show."""
        access, user = self.access, self.access.security.users.get(self.principal.user)
        is_super = user is not None and user.type is UserType.SUPER and user.is_enabled
        return access.is_enforced and not (is_super or self.principal.is_node)

    @property
    def has_own_view(self) -> bool:
        """What it is shown of the cluster is not what everybody is."""
        return self.sees_less or bool(self.principal.namespace)

    def sees_topic(self, name: str) -> bool:
        """Whether lists show it."""
        return self.access.may(self.principal, topic_resource(name), SEE_TOPIC)

    def sees_group(self, name: str) -> bool:
        """Whether lists show the consumer group."""
        return self.access.may(self.principal, Resource(ResourceType.GROUP, name), SEE_GROUP)
