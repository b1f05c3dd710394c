"""Pure: how many topics and consumer groups users may make, and namespaces may have.

A user's creations are one number: the time until which its quota is used up. Each adds its share of
an hour, and none is made that would take it beyond an hour from now. So an hour's worth may be made
at once. Times are replicated ones.
"""

from paceline.wire.names import namespace_of
from paceline.wire.users import ANONYMOUS, EACH, HOUR_MS, Quota
from paceline_controller.state.model import State
from paceline_controller.state.outcome import RefusedError


def charge_topic(state: State, name: str, by: str | None) -> None:
    """Count a topic that is made next; RefusedError where a quota allows no more, and nothing is
    counted then. `by`: who asked for it; None: nobody whom quotas bound."""
    namespace = namespace_of(name)
    limit = _of_namespace(state, namespace).topics
    if limit is not None:
        count = state.users_topics[namespace]
        _check_count("TOO_MANY_TOPICS", namespace, "topics", count=count, limit=limit)
    _charge(state, by)


def charge_group(state: State, name: str, by: str | None) -> None:
    """As `charge_topic`, of a consumer group."""
    namespace = namespace_of(name)
    limit = _of_namespace(state, namespace).groups
    if limit is not None:
        count = sum(namespace_of(group) == namespace for group in state.consumer_groups)
        _check_count("TOO_MANY_GROUPS", namespace, "consumer groups", count=count, limit=limit)
    _charge(state, by)


def _of_namespace(state: State, namespace: str) -> Quota:
    return state.security.quotas.get(f"Namespace:{namespace}", Quota())


def _check_count(reason: str, namespace: str, what: str, *, count: int, limit: int) -> None:
    if count >= limit:
        raise RefusedError(
            reason,
            f"namespace {namespace} has {count} {what}, and its quota allows {limit}: delete some,"
            " or have a super user raise it (paceline quota set)",
        )


def _charge(state: State, by: str | None) -> None:
    limit = None if by is None else _creations_per_hour(state, by)
    if by is None or limit is None:
        return
    now_ms = state.time_ms
    share_ms = HOUR_MS // limit
    used_until = max(state.creations.get(by, 0), now_ms) + share_ms
    wait_ms = used_until - now_ms - limit * share_ms
    if wait_ms > 0:
        raise RefusedError(
            "QUOTA_EXCEEDED",
            f"user {by} may make {limit} topics and consumer groups an hour, and has: wait, or"
            " have a super user raise it (paceline quota set)",
            retry_after_ms=wait_ms,
        )
    # Who has used up nothing needs no row.
    state.creations = {user: at for user, at in state.creations.items() if at > now_ms}
    state.creations[by] = used_until


def _creations_per_hour(state: State, user: str) -> int | None:
    quotas = state.security.quotas
    own = quotas.get(f"User:{user}")
    if own is None and user != ANONYMOUS:
        own = quotas.get(f"User:{EACH}")
    return None if own is None else own.creations_per_hour
