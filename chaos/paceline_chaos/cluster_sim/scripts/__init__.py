"""Moments: what random faults do not show of a rule, each brought about by a script of its own.

Rules whose absence costs time, or only a needless change, or that a second rule stands behind, can
be taken out without a seed of the other beds noticing. Here each has a script that waits for the
moment that the rule is about, and says what must be seen then. The mutants of this bed
(`mutants/scripts.py`) run the script of their rule. All of them:
`python -m paceline_chaos.cluster_sim.scripts`.
"""

from collections.abc import Mapping
from typing import Any

from paceline_chaos.cluster_sim.scripted import Scripted
from paceline_chaos.cluster_sim.scripts.cluster import (
    acting,
    amnesia,
    clocks,
    damage,
    ending,
    escaping,
    founding,
    full,
    handing,
    keeping,
    leading,
    news,
    pace,
    power,
    returning,
    sealing,
    storing,
    waiting,
)
from paceline_chaos.cluster_sim.scripts.groups import (
    broadcasting,
    doors,
    expiring,
    filters,
    flooding,
    frozen,
    groups,
    hooks,
    moving,
    permits,
    queries,
    resending,
    resetting,
    rights,
    topics,
)
from paceline_chaos.cluster_sim.topology import Client, Timers


def _clients(*jobs: str) -> Mapping[str, Any]:
    """One client for each text, which names its jobs."""
    found = (
        Client(name=f"client-{number}", jobs=tuple(text.split()))
        for number, text in enumerate(jobs, start=1)
    )
    return {"clients": tuple(found)}


SCENARIOS: Mapping[str, Scripted] = {
    "opens-nothing": Scripted(
        rule="R6: a master that cannot open its epoch is replaced",
        script=leading.opens_nothing,
        unmet=leading.opened_by_another,
        load_ms=9_000,
    ),
    "confirms-nothing": Scripted(
        rule="R6: a master that reaches no replica is replaced, whatever its clients do",
        script=leading.confirms_nothing,
        unmet=leading.confirmed_by_another,
        load_ms=11_000,
    ),
    "short-silence": Scripted(
        rule="R12: a replica that is silent, or reconnects, for a short while stays a member",
        script=pace.short_silence,
        unmet=pace.nobody_left,
        topology={"timers": pace.PATIENT},
    ),
    "own-stall": Scripted(
        rule="R12: the master's own stall is no lag of its replicas",
        script=pace.own_stall,
        unmet=pace.nobody_left,
        topology={"timers": pace.PATIENT, "min_in_sync_replicas": 1},
    ),
    "slow-disks": Scripted(
        rule="R12, R22: where all disks are slow nobody leaves the set, or is replaced, for it",
        script=pace.slow_disks,
        unmet=pace.went_on_slowly,
        load_ms=14_000,
        topology={"timers": Timers()},
    ),
    "slow-failover": Scripted(
        rule="R6: a master that is elected while all disks are slow has time to take up its epoch",
        script=pace.slow_failover,
        unmet=pace.went_on_after_it,
        load_ms=16_000,
        topology={"timers": Timers()},
    ),
    "slow-member": Scripted(
        rule="R12: a member that acknowledges, but stays behind, leaves the set; sends go on",
        script=pace.slow_member,
        unmet=pace.was_left_out,
        load_ms=15_000,
    ),
    "slow-alone": Scripted(
        rule="R22: a master whose disk alone is slow is replaced",
        script=pace.slow_alone,
        unmet=pace.was_replaced,
        load_ms=14_000,
        topology={"timers": Timers()},
    ),
    "gone": Scripted(
        rule="R12: who is dead leaves the set at once, who is silent when it lags; sends go on",
        script=pace.gone,
        unmet=pace.was_left_behind,
        load_ms=9_000,
    ),
    "ended-waiting": Scripted(
        rule="R1: what waits when a mastership ends is told that its outcome is unknown",
        script=ending.ended_waiting,
        unmet=ending.was_unknown,
        topology={"timers": ending.UNHURRIED},
    ),
    "ended-grants": Scripted(
        rule="R28: what was given to receivers by a grant that nobody else has is given to nobody",
        script=ending.ended_waiting,
        unmet=ending.was_unknown,
        topology={**_clients("send", "pop", "pop"), "timers": ending.UNHURRIED},
    ),
    "ended-again": Scripted(
        rule="R34: a half is decided once, also while its first end is not confirmed yet",
        script=ending.ended_again,
        unmet=ending.were_ended_once,
        load_ms=9_000,
        topology={**_clients("send", "transact", "transact"), "timers": pace.PATIENT},
    ),
    "replaced-unheard": Scripted(
        rule="R2: with a new epoch nobody acknowledges anything of the old one any more",
        script=ending.replaced_unheard,
        unmet=ending.was_fenced,
        load_ms=9_000,
    ),
    "old-news": Scripted(
        rule="R38: older news of a set do not replace newer ones",
        script=news.old_news,
        unmet=news.were_passed_over,
        load_ms=9_000,
    ),
    "old-range": Scripted(
        rule="R3: who reads from beyond an end is told the range of who is the master for certain",
        script=news.old_range,
        unmet=news.was_not_told,
        load_ms=11_000,
    ),
    "dark": Scripted(
        rule="INV-10: what controllers have acknowledged outlives the power of all of them",
        script=power.dark,
        unmet=power.was_kept,
        load_ms=12_000,
    ),
    "second-try": Scripted(
        rule="R22: a controller whose sync has failed does not believe the next one",
        script=power.second_try,
        unmet=power.was_not_believed,
        load_ms=16_000,
    ),
    "failed-sync": Scripted(
        rule="R22: a broker whose sync has failed counts no more until it is started again",
        script=power.failed_sync,
        unmet=power.counted_no_more,
        load_ms=14_000,
    ),
    "acting": Scripted(
        rule="R36: while nobody can lead a replica serves reads, soft offsets and locks",
        script=acting.acting,
        unmet=acting.acted,
        load_ms=22_000,
        topology=_clients("send", "push", "ordered", "pull", "ordered"),
    ),
    "escape": Scripted(
        rule="R36: what is due without a master goes to another group, and the next one skips it",
        script=escaping.escaping,
        unmet=escaping.escaped,
        load_ms=30_000,
        topology={
            "groups": {"g1": ("b1", "b2", "b3"), "g2": ("b4", "b5", "b6")},
            **_clients("delay send", "delay", "delay push", "read"),
            "escapes": True,
            "think_ms": 40.0,
        },
    ),
    "contended": Scripted(
        rule="INV-11: a token that is not the present one commits nothing and gives nothing back",
        script=frozen.contended,
        unmet=frozen.tokens_were_refused,
        load_ms=14_000,
        topology=_clients("send", "ordered", "ordered", "ordered", "ordered"),
    ),
    "frozen": Scripted(
        rule="R33, INV-11: a member frozen past its lease begins nothing under its old token",
        script=frozen.frozen,
        unmet=frozen.was_fenced,
        load_ms=20_000,
        topology={
            **_clients("send", "inorder", "inorder", "send"),
            "queues": 4,
        },
    ),
    "late-answer": Scripted(
        rule="R33: a lease counts from its question, however late the answer comes",
        script=frozen.late_answer,
        unmet=frozen.relied_on_its_question,
        load_ms=14_000,
        topology=_clients("send", "inorder-slow", "send"),
    ),
    "moving": Scripted(
        rule="R32: what is unknown at the old place of a logical queue is overtaken by nothing",
        script=moving.moving,
        unmet=moving.moved,
        load_ms=24_000,
        topology={
            "groups": {"g1": ("b1", "b2", "b3"), "g2": ("b4", "b5", "b6")},
            **_clients("send", "remap"),
        },
    ),
    "asked-unheard": Scripted(
        rule="R20: who asked to be replaced stays drained until it knows the outcome",
        script=handing.asked_and_unheard,
        unmet=handing.was_unheard,
    ),
    "damage": Scripted(
        rule="R24: a flipped bit is found, served to nobody, and mended by another member",
        script=damage.damaged,
        unmet=damage.mended,
        load_ms=14_000,
    ),
    "spare": Scripted(
        rule="R25: a segment made ahead while the log is mended and opened anew is not used",
        script=damage.spare_under_way,
        unmet=damage.rolled_on,
        load_ms=10_000,
        topology={"segment_size_bytes": damage.SEGMENT_BYTES},
    ),
    "learner": Scripted(
        rule="R18: a learner replicates, and is never a member, nor elected",
        script=founding.learning,
        unmet=founding.only_learnt,
        load_ms=12_000,
        topology={"learners": ("b3",)},
    ),
    "forgotten": Scripted(
        rule="R18: a group is founded by empty stores, once",
        script=founding.forgotten,
        unmet=founding.was_kept,
        load_ms=14_000,
    ),
    "amnesia": Scripted(
        rule="R18: a controller that lost its disk does not vote",
        script=amnesia.amnesia,
        unmet=amnesia.was_remembered,
        load_ms=20_000,
    ),
    "recovered": Scripted(
        rule="R18: the operator alone has a forgotten group led again, from a store it names",
        script=founding.recovered,
        unmet=founding.was_recovered,
        load_ms=18_000,
    ),
    "kept": Scripted(
        rule="R14, R26, R29: retention stops at records, pins, checkpoints and wrong clocks",
        script=keeping.kept,
        unmet=keeping.was_kept,
        load_ms=22_000,
        topology=keeping.SMALL_LOGS,
    ),
    "stored-again": Scripted(
        rule="R14, R26, R34: retention stores again what waits, of each sort, as often as it must",
        script=storing.stored_again,
        unmet=storing.ended_well,
        load_ms=24_000,
        topology={
            "think_ms": 40.0,
            "segment_size_bytes": storing.SEGMENT_BYTES,
            "log_bytes_max": 2 * storing.SEGMENT_BYTES,
        },
    ),
    "returns": Scripted(
        rule="R9, R10: an old copy and an empty disk count once they have caught up",
        script=returning.returns,
        unmet=returning.have_returned,
        load_ms=14_000,
    ),
    "stale-master": Scripted(
        rule="R16: a master that is an old copy stands still while it is a member, then follows",
        script=returning.stale_master,
        unmet=returning.was_deposed,
        load_ms=14_000,
    ),
    "state-lost": Scripted(
        rule="R5, R14: who lost its state sets its data aside and begins anew",
        script=returning.state_lost,
        unmet=returning.began_anew,
        load_ms=16_000,
        topology=keeping.SMALL_LOGS,
    ),
    "deleted-damage": Scripted(
        rule="R24, R26: who is damaged where all others have deleted begins anew",
        script=returning.deleted_elsewhere,
        unmet=returning.gave_up_its_damage,
        load_ms=20_000,
        topology=keeping.SMALL_LOGS,
    ),
    "groups": Scripted(
        rule="R33, R34: groups are moved, poll, keep offsets, while masters and members die",
        script=groups.groups,
        unmet=groups.have_gone_on,
        load_ms=26_000,
        topology=_clients("send", "lite move", "broadcast", "push resend"),
    ),
    "filters": Scripted(
        rule="S39: groups with filters get all that they want, and nothing else",
        script=filters.filters,
        unmet=filters.were_given,
        load_ms=8_000,
        topology={
            **_clients("send", "filter", "filter"),
            "think_ms": 60.0,
        },
    ),
    "queries": Scripted(
        rule="S40, L7: what is found is true, and by key, unique key, id and time all is found",
        script=queries.queries,
        unmet=queries.were_answered,
        load_ms=9_000,
        topology={
            **_clients("send", "query", "query delay"),
            "think_ms": 60.0,
        },
    ),
    "flood": Scripted(
        rule="ADR 18: who is hostile holds his share, keeps nobody out and deposes no master",
        script=flooding.flood,
        unmet=flooding.were_served,
        load_ms=12_000,
        topology=_clients("send", "send read", "flood"),
    ),
    "hooks": Scripted(
        rule="S41: hooks are told of everything once, and what they refuse is nowhere",
        script=hooks.hooks,
        unmet=hooks.were_told,
        load_ms=8_000,
        topology={
            **_clients("send", "hook", "hook"),
            "think_ms": 60.0,
        },
    ),
    "rights": Scripted(
        rule="S31, S42, S43, S44: nobody does or sees what he may not, nobody is refused wrongly",
        script=rights.rights,
        unmet=rights.were_judged,
        load_ms=18_000,
        topology={
            **_clients("send tenant", "read tenant rights", "send tenant"),
            "think_ms": 40.0,
        },
    ),
    "doors": Scripted(
        rule="S1 to S41: what clients of the remoting protocol are promised at gateways that die",
        script=doors.failovers,
        unmet=doors.all_was_done,
        load_ms=16_000,
        topology=_clients("send", "remoting", "read"),
    ),
    "doors-keys": Scripted(
        rule="S31: a key that is revoked counts at no door any more, once nodes know",
        script=doors.a_failover,
        unmet=doors.keys_counted,
        load_ms=26_000,
        topology=_clients("send tenant-doors", "read keys"),
    ),
    "left-behind": Scripted(
        rule="S31, L13: rights go in the middle of a transaction, a receive, a lock; others go on",
        script=rights.left_behind,
        unmet=rights.were_left_behind,
        load_ms=28_000,
        topology={
            **_clients("send tenant-work", "read tenant-work rights-rests", "tenant-work"),
            "think_ms": 40.0,
        },
    ),
    "permits": Scripted(
        rule="R32, S4: without permission all is refused; what is for one queue goes nowhere else",
        script=permits.permits,
        unmet=permits.went_on,
        load_ms=12_000,
        topology={
            "groups": {"g1": ("b1", "b2", "b3"), "g2": ("b4", "b5", "b6")},
            **_clients("ways", "ways", "permit ways", "ways"),
            "think_ms": 60.0,
        },
    ),
    "waiting": Scripted(
        rule="R14, R34, INV-9: what waits is there again when all power was gone, and comes once",
        script=waiting.waiting,
        unmet=waiting.was_delivered,
        load_ms=20_000,
        topology=_clients("send", "delay transact", "pop", "push"),
    ),
    "wrong-clock": Scripted(
        rule="R29: a master whose clock is wrong delivers nothing early, nor does its successor",
        script=clocks.wrong_clock,
        unmet=clocks.nothing_was_early,
        load_ms=20_000,
        topology=_clients("send", "delay", "delay push", "read"),
    ),
    "expiring": Scripted(
        rule="R29: messages that receivers forgot are given anew in time, also by the next master",
        script=expiring.expiring,
        unmet=expiring.were_given_anew,
        load_ms=26_000,
        topology=_clients("send", "pop"),
    ),
    "broadcasting": Scripted(
        rule="R28, R29: each client of a broadcasting group goes on where it was, at any master",
        script=broadcasting.broadcasting,
        unmet=broadcasting.all_received_all,
        load_ms=30_000,
        topology=_clients("send"),
    ),
    "deleted": Scripted(
        rule="R35: what hangs on a deleted topic goes with it, on every replica",
        script=topics.deleted,
        unmet=topics.were_dropped,
        load_ms=9_000,
    ),
    "sealed": Scripted(
        rule="R28: a queue that moves away is sealed; that is told once it is confirmed",
        script=sealing.sealed,
        unmet=sealing.was_sealed,
        load_ms=11_000,
        topology={"groups": sealing.GROUPS},
    ),
    "group-deleted": Scripted(
        rule="R35: what a deleted consumer group has goes with it, on every replica",
        script=topics.group_deleted,
        unmet=topics.were_dropped,
        load_ms=9_000,
    ),
    "sent-back-again": Scripted(
        rule="R28, R34: after a reset a message may be sent back again, also behind a checkpoint",
        script=resending.sent_back_again,
        unmet=resending.came_twice,
        load_ms=14_000,
    ),
    "reset-lost": Scripted(
        rule="R28: a reset that is lost hides no later one from a running member",
        script=resetting.reset_lost,
        unmet=resetting.was_told,
        load_ms=14_000,
    ),
    "replicas-full": Scripted(
        rule="R26: full disks of members that are needed are what refusals of sends speak of",
        script=full.replicas_full,
        unmet=full.said_so,
        load_ms=8_000,
    ),
    "first-commit": Scripted(
        rule="R33: a member's first commit does not undo a reset that came before it",
        script=resetting.first_commit,
        unmet=resetting.kept_the_reset,
        load_ms=5_000,
    ),
    "latest-epoch": Scripted(
        rule="R21: of replicas outside of the set the one with the latest epoch leads",
        script=leading.latest_epoch,
        unmet=leading.latest_epoch_led,
        load_ms=18_000,
        topology={"min_in_sync_replicas": 1, "timers": leading.TAILED},
    ),
    "unclean": Scripted(
        rule="R21: an unclean epoch clamps offsets, voids locks, fences producers",
        script=leading.unclean,
        unmet=leading.unclean_was_told,
        load_ms=10_000,
        topology=_clients("send", "push", "ordered"),
    ),
}
