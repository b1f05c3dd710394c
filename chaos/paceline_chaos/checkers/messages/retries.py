"""Pure: messages sent back and dead letters: S29, and what they mean for S21."""

from collections import defaultdict

from paceline_chaos.checkers.evidence.chains import Chains, Link, Place
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.findings import Findings
from paceline_chaos.history.model import Commit, Deliver, Outcome, Queue, ReplicaDump


def dead_letters_had_their_attempts(evidence: Evidence) -> Findings:
    """S29: for each consumer group g that the world says may retry a message n times:
    (a) each record is made into at most one retry or dead letter of g, unless g was reset on its
    queue; each that waited is put into its queue at most once;
    (b) a record of which one was made had been handed out to a member of g that did not process it:
    what was processed, and handed out but once, neither comes again nor dies;
    (c) a dead letter has n retries behind it, as far back as the log goes.
    For each group that receives by receipt (a), and
    (d) a message of which an acknowledgement succeeded is no dead letter of the group, unless it
    was reset. For all,
    (e) a dead letter is resent at most once, however often that is asked for, and if somebody was
    told that it is, it is.
    That nothing is lost between is S21's: no offset is committed of which neither a member was done
    nor a link was made. O(n)."""
    found = Findings("S29")
    delivers: defaultdict[Place, list[Deliver]] = defaultdict(list)
    by_group: dict[str, defaultdict[Place, list[Deliver]]] = {}
    for deliver in evidence.delivers:
        delivers = by_group.setdefault(deliver.consumer_group, defaultdict(list))
        delivers[Place(deliver.queue, deliver.message.offset)].append(deliver)
    resets = {
        (commit.consumer_group, commit.queue)
        for commit in evidence.commits
        if isinstance(commit, Commit) and commit.is_reset and commit.outcome is not Outcome.FAIL
    }
    receiving = {pop.consumer_group for pop in evidence.pops}
    times_max = evidence.world.get("max_reconsume_times")
    for name, chains in evidence.chains.items():
        if evidence.is_lossy(name):
            continue
        dump = evidence.truth[name]
        _never_both(found, evidence, chains, name, resets)
        _resent_once(evidence, found, dump, chains)
        for group, links in chains.links.items():
            if group in receiving:
                _made_once(found, dump, chains, group, links, resets)
            if group in by_group:
                _made_once(found, dump, chains, group, links, resets)
                _failed_before(found, dump, chains, links, by_group[group])
                if isinstance(times_max, int):
                    _had_attempts(found, dump, chains, links, times_max)
    return found


def _made_once(
    found: Findings,
    dump: ReplicaDump,
    chains: Chains,
    group: str,
    links: list[Link],
    resets: set[tuple[str, Queue]],
) -> None:
    known: dict[int, Link] = {}
    for link in links:
        found.judged += 1
        found.counters["retried" if link.cause == "RETRIED" else "dead"] += 1
        before = known.setdefault(link.source, link)
        place = chains.place(link.source)
        if before is link or (place is not None and (group, place.queue) in resets):
            continue
        found.violate(f"{_name(place)} was sent back twice by {group}: {before}, {link}", dump)
    for link in links:
        if len(chains.delivered.get(link.made, ())) > 1:
            found.violate(f"the retry {link} was put into its queue twice", dump)


def _failed_before(
    found: Findings,
    dump: ReplicaDump,
    chains: Chains,
    links: list[Link],
    delivers: dict[Place, list[Deliver]],
) -> None:
    for link in links:
        place = chains.place(link.source)
        if place is None:
            continue  # deleted since
        tries = delivers.get(place, [])
        if not tries:
            found.violate(f"{_name(place)} was handed out to nobody, and was sent back", dump)
        elif all(deliver.outcome is Outcome.OK for deliver in tries):
            what = "comes again" if link.cause == "RETRIED" else "is a dead letter"
            found.violate(f"{_name(place)} was processed, and {what}", dump, tries[0])


def _never_both(
    found: Findings,
    evidence: Evidence,
    chains: Chains,
    broker_group: str,
    resets: set[tuple[str, Queue]],
) -> None:
    for ack in evidence.done_receipts:
        lane = (ack.consumer_group, ack.queue)
        is_done = ack.outcome is Outcome.OK and not ack.is_back
        if not is_done or ack.queue.group != broker_group or lane in resets:
            continue
        found.judged += 1
        if ack.offset in chains.dead.get(lane, ()):
            place = _name(Place(ack.queue, ack.offset))
            sentence = f"{place} was acknowledged, and is a dead letter of {ack.consumer_group}"
            found.violate(sentence, evidence.truth[broker_group], ack)


def _had_attempts(
    found: Findings, dump: ReplicaDump, chains: Chains, links: list[Link], times_max: int
) -> None:
    made_of = {link.made: link for link in links if link.cause == "RETRIED"}
    for link in links:
        if link.cause != "DEAD":
            continue
        retries, record = 0, link.source
        while (waited := chains.waited.get(record)) is not None and waited in made_of:
            retries += 1
            record = made_of[waited].source
        place = chains.place(record)
        is_whole = place is not None and not place.queue.topic.startswith("%")
        if is_whole and retries != times_max:
            found.violate(f"{_name(place)} died after {retries} retries, not {times_max}", dump)


def _resent_once(evidence: Evidence, found: Findings, dump: ReplicaDump, chains: Chains) -> None:
    places: set[Place] = set()
    for source, made in chains.resent.items():
        place = chains.place(source)
        found.judged += 1
        found.counters["resent"] += 1
        if place is not None:
            places.add(place)
        if len(made) > 1:
            found.violate(f"{_name(place)} was resent {len(made)} times", dump)
    for resend in evidence.resends:
        is_here = resend.queue.group == dump.group and resend.outcome is Outcome.OK
        place = Place(resend.queue, resend.offset)
        if not is_here or place in places or evidence.start_of(resend.queue) > resend.offset:
            continue
        found.violate(f"{_name(place)} was said to be resent, and is not", resend, dump)


def _name(place: Place | None) -> str:
    if place is None:
        return "a record that is deleted"
    queue = place.queue
    return f"{queue.topic}/{queue.group}/{queue.queue} at {place.offset}"
