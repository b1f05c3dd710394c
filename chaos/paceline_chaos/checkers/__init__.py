"""Pure: judges histories: what a run proves is what these modules find in its history.

    verdict = judge(history)
    verdict.is_good, verdict.violations, verdict.counters["judged.S7"]

Each checker decides one property; its docstring states it formally, says how it is decided and what
it costs. docs/CHECKERS.md is the table of all. A checker knows nothing of workloads, faults' aims
or the code under test; it may know less than happened (probes are samples) and then says nothing:
a violation is always proved by the entries that it names. `judged.X` in the counters says how much
there was to judge; 0 means that the history is silent on X, not that X holds. `excused.NAME` says
how often something was not judged, or not held against anybody: see `allowances`.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeAlias

from paceline_chaos.checkers import liveness
from paceline_chaos.checkers.cluster import learners, mastership, metadata, repairs, replicas
from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.checkers.groups import filters, groups, handed, hooks, locks
from paceline_chaos.checkers.messages import (
    delays,
    escaping,
    logical,
    messages,
    order,
    queries,
    receipts,
    retention,
    retries,
    shrinking,
    transactions,
    visibility,
)
from paceline_chaos.checkers.security import left_behind, rights
from paceline_chaos.history.decided import decided
from paceline_chaos.history.model import History, Operation, Outcome, Pull, Send
from paceline_chaos.verdict import HARNESS, Verdict, Violation

Checker: TypeAlias = Callable[[Evidence], Findings]

ALL: dict[str, Checker] = {
    "S1": messages.nothing_acknowledged_is_lost,
    "S2": messages.one_message_for_each_offset,
    "S3": messages.nothing_is_invented,
    "S4": messages.no_failed_send_shows,
    "S5": messages.stored_at_most_once,
    "S6": messages.logs_are_dense,
    "S7": order.acknowledged_in_real_time_order,
    "S8": order.sessions_keep_order,
    "S9": order.readers_skip_nothing,
    "S10": visibility.what_was_read_stays,
    "S11": replicas.confirm_never_falls,
    "S12": replicas.logs_agree_below_confirm,
    "S13": mastership.one_master_for_each_epoch,
    "S14": mastership.epochs_never_fall,
    "S15": mastership.masters_come_from_the_set,
    "S16": replicas.acknowledged_is_durable,
    "S17": replicas.shrinks_are_committed_before_use,
    "S18": metadata.topics_are_linearizable,
    "S19": visibility.ends_know_what_was_acknowledged,
    "S20": visibility.master_shows_its_own_acknowledgements,
    "S21": groups.nothing_is_committed_unprocessed,
    "S22": groups.committed_offsets_never_fall,
    "S23": receipts.receipts_exclude,
    "S24": transactions.transactions_are_atomic,
    "S25": delays.delayed_messages_come_once_and_in_time,
    "S26": locks.locks_exclude,
    "S27": groups.ordered_consumption_keeps_order,
    "S28": retention.starts_only_rise,
    "S29": retries.dead_letters_had_their_attempts,
    "S30": mastership.only_caught_up_replicas_count,
    "S31": rights.nobody_does_what_he_may_not,
    "S32": metadata.controllers_agree,
    "S33": learners.learners_are_in_no_set,
    "S34": handed.provisional_offsets_are_handed_over,
    "S35": groups.broadcasting_skips_nothing,
    "S36": shrinking.nothing_is_stored_where_nobody_reads,
    "S37": logical.logical_queues_are_one_queue,
    "S38": escaping.escaped_messages_are_marked_and_skipped_for_a_reason,
    "S39": filters.filtered_groups_get_what_they_want,
    "S40": queries.answers_are_true,
    "S41": hooks.hooks_are_told_of_everything_once,
    "S42": rights.nobody_sees_what_is_not_his,
    "S43": rights.nobody_is_refused_who_may,
    "S44": rights.nobody_locks_all_out,
    "INV-2": replicas.positions_are_in_order,
    "INV-8": visibility.nothing_above_confirm_is_served,
    "INV-11": locks.tokens_only_grow,
    "INV-12": replicas.later_masters_have_it,
    "R1": mastership.mastership_ends_with_its_process,
    "R8": mastership.sets_keep_the_minimum,
    "R23": replicas.damage_has_a_cause,
    "R37": messages.answers_wait_for_confirm,
    "L1": liveness.healing_is_quick,
    "L2": liveness.acknowledgements_go_on,
    "L3": liveness.broken_minority_stops_nothing,
    "L4": liveness.everybody_gets_an_answer,
    "L5": liveness.groups_make_progress,
    "L6": liveness.elections_are_few,
    "L7": queries.what_is_stored_is_found,
    "L8": repairs.damage_is_mended,
    "L9": groups.commits_catch_up,
    "L10": groups.queues_are_started_once,
    "L11": liveness.ranges_are_told,
    "L12": rights.rights_arrive,
    "L13": left_behind.what_is_left_behind_holds_nobody_up,
}
"""Property -> its checker."""
SAFETY = tuple(name for name in ALL if not name.startswith("L"))
"""What holds also where a group waits for its operator."""


def judge(
    history: History,
    *,
    bounds: Bounds | None = None,
    properties: Collection[str] = ALL.keys(),
) -> Verdict:
    """What a history proves. `properties`: judge only these."""
    evidence = Evidence(history, bounds)
    violations: list[Violation] = []
    counters = _what_was_seen(evidence)
    for prop in properties:
        found = ALL[prop](evidence)
        counters[f"judged.{prop}"] = found.judged
        counters.update(found.counters)
        if found.violations_count:
            counters[f"violations.{prop}"] = found.violations_count
        violations += found.violations
    violations += _missing_dumps(evidence)
    counters.update({f"excused.{name}": n for name, n in evidence.allowances.used.items() if n})
    return Verdict(violations=tuple(violations), counters=dict(counters))


def _missing_dumps(evidence: Evidence) -> list[Violation]:
    """Groups that the world names and nobody has dumped: the bed is broken, nothing is proved."""
    named = evidence.world.get("groups", ())
    if not evidence.is_over or not isinstance(named, Collection):
        return []
    missing = [str(group) for group in named if not evidence.dumps_of.get(str(group))]
    return [
        Violation(property=HARNESS, sentence=f"no log of {group} was dumped") for group in missing
    ]


def _what_was_seen(evidence: Evidence) -> Counter[str]:
    """What made the run worth something."""
    counters: Counter[str] = Counter()
    for entry in evidence.entries:
        if isinstance(entry, Operation):
            counters["operations"] += 1
            if isinstance(entry, Send):
                counters[f"sends_{entry.outcome}"] += 1
                counters["deduplicated"] += entry.is_duplicate
            elif isinstance(entry, Pull):
                counters["messages_read"] += len(entry.messages)
    counters["acknowledged"] = counters[f"sends_{Outcome.OK}"]
    counters["delivered"] = len(evidence.delivers)
    counters["faults"] = sum(fault.is_begin for fault in evidence.faults)
    counters["probes"] = len(evidence.probes)
    rulings = decided(evidence.entries)
    counters["elections"] = rulings.elections
    for reason, count in rulings.by_reason.items():
        counters[f"elections.{reason}"] = count
    counters["shrinks"], counters["grows"] = rulings.shrinks, rulings.grows
    return counters
