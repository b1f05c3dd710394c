"""What rights rest on, taken out (S31, S42 to S44, L13): checks, denials, sources, revocations."""

from typing import Any

from msgspec.structs import replace

from paceline.security import decide, visible
from paceline.security.access import Access
from paceline.security.decide import PolicyIndex
from paceline.wire.calls import locks, offsets, pop
from paceline.wire.rights import ANYBODY, Decision, Resource
from paceline.wire.users import Security
from paceline_broker.projections.locks import LockEntry, LockOutcome, LockRequest, Locks, Token
from paceline_broker.server import http as broker_http
from paceline_broker.server.openapi import OTHERS
from paceline_broker.server.stream import StreamConnection
from paceline_broker.server.stream_rights import StreamRights
from paceline_broker.service.transactions.known_halves import KnownHalves
from paceline_broker.service.transactions.transactions import TransactionEnds
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment
from paceline_controller.server import http as controller_http
from paceline_controller.state import security


def _unchecked_call() -> list[Patch]:
    """A request of the tables that needs nothing: what a group has committed."""
    return [(offsets.Offsets, "needs", ANYBODY)]


def _unchecked_route() -> list[Patch]:
    """A route outside of them that needs nothing: a queue's messages, and all others."""
    open_to_all = tuple(other._replace(needs=ANYBODY) for other in OTHERS)
    return [(broker_http, "OTHERS", open_to_all)]


def _verdicts_kept() -> list[Patch]:
    """What was decided once counts for ever: no version makes it anew."""
    apply = Access.apply

    def apply_and_keep(access: Access, newer: Any) -> bool:
        kept = dict(access._verdicts)
        is_newer = apply(access, newer)
        access._verdicts.update(kept)
        return is_newer

    return [(Access, "apply", apply_and_keep)]


def _denials_ignored() -> list[Patch]:
    """Allowances alone count."""
    naming = PolicyIndex.naming

    def allowances(index: PolicyIndex, resource: Resource) -> Any:
        return [rule for rule in naming(index, resource) if rule.entry.decision is Decision.ALLOW]

    return [(PolicyIndex, "naming", allowances)]


def _sources_ignored() -> list[Patch]:
    """Every address is within every network."""
    return [(decide, "_is_within", lambda source, networks: True)]


def _streams_stay() -> list[Patch]:
    """An open stream goes on with what it was allowed when it came."""
    return [
        (StreamConnection, "rights_changed", lambda stream: None),
        (StreamRights, "is_valid", lambda rights: True),
    ]


def _revoked_keys_count() -> list[Patch]:
    """A key that a user has had goes on to count as long as there is the user."""
    apply = Access.apply

    def apply_and_keep(access: Access, newer: Security) -> bool:
        before = access.security.users
        users = {
            name: replace(user, keys={**before.get(name, user).keys, **user.keys})
            for name, user in newer.users.items()
        }
        return apply(access, replace(newer, users=users))

    return [(Access, "apply", apply_and_keep)]


def _lists_unfiltered() -> list[Patch]:
    """Lists show whoever may ask all that there is."""
    return [(controller_http, "visible_answer", lambda call, answer, asker: answer)]


def _views_unfiltered() -> list[Patch]:
    """Views do."""
    return [(visible, "visible", lambda asker, view: view)]


def _locked_out() -> list[Patch]:
    """Nobody asks who is left that can give rights."""
    return [(security, "_check_not_locked_out", lambda before, after, *, now_unix_ms: None)]


def _unchecked_end() -> list[Patch]:
    """Who ends a transaction needs no right to send to its topic."""
    return [(TransactionEnds, "_check_rights", lambda ends, end, half: None)]


def _unchecked_receipt() -> list[Patch]:
    """Who holds a message by receipt goes on as long as he likes."""
    return [(pop.Ack, "needs", ANYBODY), (pop.Invisible, "needs", ANYBODY)]


def _unchecked_lock() -> list[Patch]:
    """Who holds a lock renews it as long as he likes."""
    return [(locks.Lock, "needs", ANYBODY)]


def _leases_do_not_end() -> list[Patch]:
    """A lock is its holder's until he gives it back."""
    decide_lock = Locks._decide_lock

    def decide(
        held: Locks, request: LockRequest, entry: LockEntry, new_token: Token, now_unix_ms: int
    ) -> LockOutcome:
        lock = held._locks.get((request.group, entry.key))
        if lock is not None and lock.client_id != request.client_id:
            return LockOutcome(entry.key, "LOCK_HELD", lock)
        return decide_lock(held, request, entry, new_token, now_unix_ms)

    return [(Locks, "_decide_lock", decide)]


def _parked_for_ever() -> list[Patch]:
    """A half that was due while nobody of its group might be asked stays where it was put."""
    return [
        (KnownHalves, "unpark", lambda known, group, count: None),
        (KnownHalves, "unpark_some", lambda known, count: None),
    ]


def _mutant(rule: str, meaning: str, patches: Any, *, script: str = "rights") -> Mutant:
    prop, _, _ = rule.partition("-")
    return Mutant(rule=rule, meaning=meaning, patches=patches, **of_moment(script, prop))


_MIDWAY = "left-behind"
RIGHTS = (
    _mutant("S31-call", "a request needs no right", _unchecked_call),
    _mutant("S31-route", "a route needs no right", _unchecked_route),
    _mutant("S31-kept", "a verdict counts for later versions", _verdicts_kept),
    _mutant("S31-deny", "denials are ignored", _denials_ignored),
    _mutant("S31-source", "addresses are ignored", _sources_ignored),
    _mutant("S31-revoked", "revoked keys go on to count", _revoked_keys_count),
    _mutant("S31-stream", "open streams go on whatever becomes of rights", _streams_stay),
    _mutant("S42-list", "lists show what the asker may not see", _lists_unfiltered),
    _mutant("S42-view", "views show what the asker may not see", _views_unfiltered),
    _mutant("S31-end", "a transaction's end needs no right", _unchecked_end, script=_MIDWAY),
    _mutant("S31-receipt", "a receipt needs no right", _unchecked_receipt, script=_MIDWAY),
    _mutant("S31-lock", "a lock needs no right", _unchecked_lock, script=_MIDWAY),
    _mutant("L13-lease", "the lock of who is gone stays his", _leases_do_not_end, script=_MIDWAY),
    _mutant("L13-half", "nobody is asked about a half later", _parked_for_ever, script=_MIDWAY),
    _mutant("S44", "the last super user may be taken away", _locked_out),
)
"""Judged by the scripts of rights."""
