"""Pure: one entry of a history as a sentence, for whoever reads the proof of a violation."""

from paceline_chaos.history.hooked import HookCall
from paceline_chaos.history.model import (
    AlterTopic,
    BeginTransaction,
    CheckTransaction,
    Commit,
    ControllerDump,
    CreateTopic,
    Decision,
    Deliver,
    DescribeTopic,
    EndTransaction,
    Entry,
    FaultEvent,
    Lock,
    LogicalQueueDump,
    Operation,
    OrderElection,
    Outcome,
    Phase,
    Probe,
    Pull,
    QueryOffset,
    QueryRange,
    Queue,
    ReplicaDump,
    Seen,
    Send,
    Stall,
    Unlock,
)
from paceline_chaos.history.secured import ChangeRights, ListNames, SecurityApplied

SHOWN_MAX = 4
"""Messages of one answer that are named."""


def actor(entry: Entry) -> str:
    """Who: a client, a member of a consumer group, a node, or what a fault hit."""
    if isinstance(entry, Operation | HookCall):
        return entry.client
    if isinstance(entry, FaultEvent):
        return entry.target
    if isinstance(entry, Stall):
        return "harness"
    return "" if isinstance(entry, Phase) else entry.node


def moment_us(entry: Entry) -> int | None:
    """When it was entered; None for dumps, which are of the end."""
    if isinstance(entry, Operation):
        return entry.answered_us
    if isinstance(entry, ReplicaDump | LogicalQueueDump | ControllerDump):
        return None
    return entry.at_us


def sentence(entry: Entry) -> str:
    """What happened."""
    if isinstance(entry, Operation):
        return f"{_asked(entry)}: {_answered(entry)}{_by(entry)}"
    if isinstance(entry, HookCall):
        return _told(entry)
    if isinstance(entry, Probe):
        opened = "open" if entry.is_open else "not open"
        return (
            f"{entry.role} in epoch {entry.epoch}, {opened}, start {entry.incarnation}; "
            f"log [{entry.start:,}, {entry.end:,}), flushed {entry.flushed:,}, "
            f"confirm {entry.confirm:,}"
        )
    if isinstance(entry, Decision):
        members = ", ".join(f"{name} {value}" for name, value in entry.members.items())
        return f"applied {entry.kind} at index {entry.index}: {members}"
    if isinstance(entry, FaultEvent):
        return f"{entry.kind} {'begins' if entry.is_begin else 'ends'} {entry.detail}".strip()
    if isinstance(entry, Phase):
        broken = f", {', '.join(entry.broken)} stay broken" if entry.broken else ""
        return f"phase {entry.name}{broken}"
    if isinstance(entry, SecurityApplied):
        return f"goes by version {entry.version} of users and rights, {entry.security['mode']}"
    if isinstance(entry, Stall):
        return f"stood still for {entry.for_us // 1000} ms"
    if isinstance(entry, LogicalQueueDump):
        places = ", ".join(map(place, entry.queues))
        return f"logical queue {entry.logical_queue} lay in {places}, sealed at {entry.ends}"
    if isinstance(entry, ReplicaDump):
        damage = f", damaged: {entry.damage}" if entry.damage else ""
        return (
            f"log at the end: [{entry.start:,}, {entry.end:,}), confirm {entry.confirm:,}, "
            f"{len(entry.batches):,} batches{damage}"
        )
    replayed = "" if entry.replayed_digest is None else f", replayed {entry.replayed_digest}"
    return f"state at the end: index {entry.index}, digest {entry.digest}{replayed}"


def _told(entry: HookCall) -> str:
    named = (*entry.values, *(message.value for message in entry.messages))
    more = ", ..." if len(named) > SHOWN_MAX else ""
    where = "" if entry.queue is None else f" in {place(entry.queue, entry.offset)}"
    failed = "" if entry.error is None else f": {entry.error}"
    return (
        f"hooks of {entry.name}: {entry.what} {entry.call} of "
        f"[{', '.join(named[:SHOWN_MAX])}{more}]{where}{failed}"
    )


def place(queue: Queue | None, offset: int | None = None) -> str:
    """ "orders g1/0 @ 12"."""
    if queue is None:
        return "nowhere"
    at = "" if offset is None else f" @ {offset}"
    return f"{queue.topic} {queue.group}/{queue.queue}{at}"


def _asked(entry: Operation) -> str:
    match entry:
        case Send():
            key = f", key {entry.key}" if entry.key is not None else ""
            return f"sent {entry.value} to {entry.topic}{key}"
        case Pull():
            return f"pulled from {place(entry.queue, entry.offset)}"
        case Deliver():
            token = "" if entry.token is None else f" under token {entry.token}"
            return (
                f"{entry.consumer_group}/{entry.member} was handed "
                f"{_seen(entry.message)} of {place(entry.queue)}{token}"
            )
        case Commit():
            what = "reset" if entry.is_reset else "committed"
            if entry.is_provisional:
                what = "provisionally committed"
            return f"{entry.consumer_group} {what} {place(entry.queue, entry.offset)}"
        case QueryOffset():
            return f"asked what {entry.consumer_group} has committed in {place(entry.queue)}"
        case QueryRange():
            return f"asked for the range of {place(entry.queue)}"
        case Lock():
            return f"{entry.consumer_group}/{entry.member} asked to lock {place(entry.queue)}"
        case Unlock():
            return f"gave back the lock {entry.token} of {place(entry.queue)}"
        case BeginTransaction():
            return f"began a transaction with {entry.value} for {entry.topic}"
        case EndTransaction():
            return f"{'committed' if entry.is_commit else 'rolled back'} {entry.value}"
        case CheckTransaction():
            return f"was asked what became of {entry.value}"
        case CreateTopic() | DescribeTopic():
            what = "created" if isinstance(entry, CreateTopic) else "looked up"
            return f"{what} topic {entry.topic}"
        case AlterTopic():
            return f"changed topic {entry.topic}: {_numbers(entry)}"
        case ListNames():
            return f"asked for {entry.what}"
        case ChangeRights():
            return f"changed rights: {entry.what} {entry.name}"
        case OrderElection():
            how = "an unclean" if entry.is_unclean else "an"
            return f"ordered {how} election of {entry.replica or 'anybody'} in {entry.group}"
    return type(entry).__name__


def _answered(entry: Operation) -> str:
    if entry.outcome is Outcome.UNKNOWN:
        return f"outcome unknown ({entry.error or 'no answer'})"
    if entry.outcome is Outcome.FAIL:
        return f"refused ({entry.error or 'no code'})"
    match entry:
        case Send():
            again = ", a duplicate" if entry.is_duplicate else ""
            early = "" if entry.is_confirmed else ", not confirmed"
            return (
                f"acknowledged {place(entry.queue, entry.offset)} "
                f"in epoch {entry.epoch}{again}{early}"
            )
        case Pull():
            shown = ", ".join(_seen(message) for message in entry.messages[:SHOWN_MAX])
            more = len(entry.messages) - SHOWN_MAX
            rest = f" and {more} more" if more > 0 else ""
            return f"{shown or 'nothing'}{rest}{_range(entry.start, entry.end)}"
        case QueryOffset():
            return f"{entry.offset}{_stale(entry.maybe_stale)}"
        case QueryRange():
            return f"{_range(entry.start, entry.end).strip()}{_stale(entry.maybe_stale)}"
        case Lock():
            return f"token {entry.token} for {entry.lease_ms} ms"
        case CreateTopic() | DescribeTopic():
            return "none" if entry.topic_id is None else f"id {entry.topic_id}"
        case ListNames():
            return f"{len(entry.topics)} topics, {len(entry.consumer_groups)} consumer groups"
    return "done"


def _numbers(entry: AlterTopic) -> str:
    parts = (("read", entry.read_queues), ("write", entry.write_queues))
    return ", ".join(f"{what} {dict(numbers)}" for what, numbers in parts if numbers is not None)


def _by(entry: Operation) -> str:
    return "" if entry.node is None else f", by {entry.node}"


def _seen(message: Seen) -> str:
    return f"{message.value} @ {message.offset}"


def _range(start: int | None, end: int | None) -> str:
    if start is None and end is None:
        return ""
    return f" [{'?' if start is None else start}, {'?' if end is None else end})"


def _stale(maybe_stale: bool) -> str:
    return " (maybe stale)" if maybe_stale else ""
