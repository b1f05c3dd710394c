"""Pure: who the controllers are: generations of the member list, each an entry of the log (R18).

Raft's single-server changes. A generation is in force on a node from the moment its entry stands
in that node's log, committed or not, and until it is truncated again; elections and commits count
the voters of the generation in force. Two neighbouring generations differ by one voter at most, so
any majority of one meets any majority of the other; the next one is appended only when the last is
committed and the leader has committed an entry of its own term. docs/adr/0011 has the argument.

Generation 0 is the configuration's `peers`, until the first change.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import orjson

from paceline.errors import CommandRefusedError, ConfigError, PeerError
from paceline.platform.address import parse_address
from paceline.types import ControllerId
from paceline.wire.commands import CONTROLLER_ID_PATTERN

VOTERS_MAX = 7
ADDRESS_LENGTH_MAX = 128
"""All members are part of a hello, which has a bound."""
_ID = re.compile(CONTROLLER_ID_PATTERN)
_STORE = re.compile(r"(?:[0-9a-f]{32})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One controller of a generation."""

    raft: str = ""
    """host:port of its Raft listener; empty: as configured."""
    client: str = ""
    """host:port for clients and brokers."""
    store: str = ""
    """The data folder that votes under this id; empty: the one its peers met first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """One generation."""

    generation: int
    voters: Mapping[ControllerId, Member]
    learners: Mapping[ControllerId, Member] = field(default_factory=dict)
    """Are sent the log and count for nothing; each becomes a voter once it has caught up."""
    leaving: ControllerId | None = None
    """A voter that is taken out as soon as there is no learner any more."""

    def find(self, controller: ControllerId) -> Member | None:
        return self.voters.get(controller) or self.learners.get(controller)

    def everyone(self) -> dict[ControllerId, Member]:
        return {**self.voters, **self.learners}

    def to_json(self) -> dict[str, object]:
        return {
            "generation": self.generation,
            "voters": _members_to_json(self.voters),
            "learners": _members_to_json(self.learners),
            "leaving": self.leaving,
        }

    # -- the changes: one voter at a time --------------------------------------------------------

    def added(
        self, controller: ControllerId, member: Member, *, voters_max: int = VOTERS_MAX
    ) -> "Members":
        """With a new learner. Raises CommandRefusedError."""
        self._ensure_quiet()
        if self.find(controller) is not None:
            raise _refused(f"{controller} is a member already: a new controller needs a new id")
        for other_id, other in self.everyone().items():
            shared = {member.raft, member.client} & {other.raft, other.client} - {""}
            if shared:
                raise _refused(f"{sorted(shared)[0]} is an address of {other_id}")
        if len(self.voters) >= voters_max:
            raise _refused(f"there are {VOTERS_MAX} voters already, the most a quorum may have")
        return self._next(learners={**self.learners, controller: member})

    def replaced(self, old: ControllerId, new: ControllerId, member: Member) -> "Members":
        """With a new learner in whose favour a voter leaves. Raises CommandRefusedError."""
        if old not in self.voters:
            raise _refused(f"{old} is no voter: {self._names()}")
        # For a moment there is one voter more; only then is the old one taken out.
        return replace(self.added(new, member, voters_max=VOTERS_MAX + 1), leaving=old)

    def removing(self, controller: ControllerId) -> "Members":
        """With a voter on its way out, or without a learner. Raises CommandRefusedError."""
        if controller in self.learners:
            rest = {name: m for name, m in self.learners.items() if name != controller}
            return self._next(learners=rest, leaving=None)
        self._ensure_quiet()
        if controller not in self.voters:
            raise _refused(f"{controller} is no member: {self._names()}")
        if len(self.voters) == 1:
            raise _refused(f"{controller} is the only voter")
        return self._next(leaving=controller)

    def promoted(self, controller: ControllerId, store: str) -> "Members":
        """The learner votes, with that store and no other (R18)."""
        member = replace(self.learners[controller], store=store)
        rest = {name: m for name, m in self.learners.items() if name != controller}
        return self._next(voters={**self.voters, controller: member}, learners=rest)

    def without_leaving(self) -> "Members":
        """The last step of a removal."""
        rest = {name: m for name, m in self.voters.items() if name != self.leaving}
        return self._next(voters=rest, leaving=None)

    def known_as(self, everyone: Mapping[ControllerId, Member]) -> "Members":
        """With what the configuration knows and the list does not: addresses and stores."""

        def filled(controller: ControllerId, member: Member) -> Member:
            known = everyone.get(controller, Member())
            return Member(
                raft=member.raft or known.raft,
                client=member.client or known.client,
                store=member.store or known.store,
            )

        return replace(self, voters={name: filled(name, m) for name, m in self.voters.items()})

    # -- inside ----------------------------------------------------------------------------------

    def _next(self, **changes: object) -> "Members":
        return replace(self, generation=self.generation + 1, **changes)  # type: ignore[arg-type]

    def _ensure_quiet(self) -> None:
        if self.learners:
            raise _refused(f"{sorted(self.learners)[0]} is still catching up: one change at a time")
        if self.leaving is not None:
            raise _refused(f"{self.leaving} is still leaving: one change at a time")

    def _names(self) -> str:
        return f"the members are {', '.join(sorted(self.everyone()))}"


def configured(controllers: Iterable[ControllerId]) -> Members:
    """Generation 0."""
    return Members(generation=0, voters={name: Member() for name in sorted(controllers)})


def is_one_step(before: Members, after: Members) -> bool:
    """Whether majorities of the two always meet: they differ by one voter at most."""
    changed = set(before.voters) ^ set(after.voters)
    kept = set(before.voters) & set(after.voters)
    is_same = all(before.voters[name].store in ("", after.voters[name].store) for name in kept)
    return (
        after.generation == before.generation + 1
        and len(changed) <= 1
        and bool(after.voters)
        and is_same
    )


def read_members(document: object) -> Members:
    """Raises PeerError unless it is what `to_json` gives."""
    if not isinstance(document, dict) or set(document) != {
        "generation",
        "voters",
        "learners",
        "leaving",
    }:
        raise PeerError("a member list with other fields")
    generation, leaving = document["generation"], document["leaving"]
    if type(generation) is not int or not 0 <= generation < 1 << 53:
        raise PeerError("a member list without a generation")
    voters = _read_members_map(document["voters"])
    learners = _read_members_map(document["learners"])
    if not voters or set(voters) & set(learners) or len(voters) > 2 * VOTERS_MAX:
        raise PeerError("a member list whose voters and learners make no sense")
    if leaving is not None and leaving not in voters:
        raise PeerError("a member list in which somebody leaves who is not there")
    return Members(generation=generation, voters=voters, learners=learners, leaving=leaving)


def check_member(controller: str, *, raft: str, client: str) -> Member:
    """What an operator wrote. Raises CommandRefusedError with a sentence."""
    if _ID.fullmatch(controller) is None:
        raise _refused(f"controller id {controller[:70]!r} must be 1 to 64 of A-Z a-z 0-9 _ . -")
    for name, address in (("raft", raft), ("client", client)):
        try:
            port = parse_address(address).port
        except ConfigError as error:
            raise _refused(f"{name} address: {error.message}") from error
        if port == 0 or len(address) > ADDRESS_LENGTH_MAX:
            raise _refused(f"{name} address {address[:140]!r}: a port, and at most 128 characters")
    if raft == client:
        raise _refused("the Raft listener and the listener for clients are two addresses")
    return Member(raft=raft, client=client)


def wished_members(
    members: Members,
    *,
    add: ControllerId | None = None,
    raft: str = "",
    client: str = "",
    remove: ControllerId | None = None,
    generation: int | None = None,
) -> Members:
    """The first generation of what an operator wants. Raises CommandRefusedError.

    With `generation`, of the list the operator knew: `members` itself if a later list has come to
    what is wanted. Then an earlier try of the same wish, or somebody else's, was taken up.
    """
    if generation is not None and members.generation != generation:
        is_later = members.generation > generation
        if is_later and _has_come_to(members, add, raft=raft, client=client, remove=remove):
            return members
        raise CommandRefusedError(
            f"the member list is generation {members.generation}, not {generation}: look at it, "
            "and ask again if you still want to",
            reason="STALE_GENERATION",
        )
    if add is None:
        if remove is None:
            raise _refused("neither a controller to add nor one to remove")
        return members.removing(remove)
    member = check_member(add, raft=raft, client=client)
    if remove is None:
        return members.added(add, member)
    return members.replaced(remove, add, member)


def _has_come_to(
    members: Members,
    add: ControllerId | None,
    *,
    raft: str,
    client: str,
    remove: ControllerId | None,
) -> bool:
    """Whether what was wished is so, or well on its way: then a repetition does nothing (R38)."""
    added = None if add is None else members.find(add)
    is_added = add is None or (added is not None and (added.raft, added.client) == (raft, client))
    is_removed = remove is None or members.leaving == remove or members.find(remove) is None
    return is_added and is_removed


def encode_change(members: Members, proposal: str) -> bytes:
    """Payload of the entry; `proposal` as in commands, empty for a step of the leader's own."""
    document = {"members": members.to_json(), "proposal": proposal}
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def read_change(payload: bytes) -> tuple[Members, str]:
    """Raises PeerError on anything that `encode_change` did not make."""
    try:
        document = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise PeerError("a change of members that is no JSON") from error
    if not isinstance(document, dict) or set(document) != {"members", "proposal"}:
        raise PeerError("a change of members with other fields")
    if not isinstance(document["proposal"], str):
        raise PeerError("a change of members with a strange proposal")
    return read_members(document["members"]), document["proposal"]


class MemberLog:
    """The generations that a log holds: the one it begins with, and its entries' by index."""

    def __init__(self, base: Members) -> None:
        self._base = base
        self._base_index = 0
        self._changes: list[tuple[int, Members]] = []

    @property
    def latest(self) -> Members:
        """The generation in force: the log's last one."""
        return self._changes[-1][1] if self._changes else self._base

    @property
    def latest_index(self) -> int:
        """Of its entry; if it is what the log begins with, of where the log begins."""
        return self._changes[-1][0] if self._changes else self._base_index

    def at(self, index: int) -> Members:
        """The last generation at or below an index."""
        found = self._base
        for changed_at, members in self._changes:
            if changed_at > index:
                break
            found = members
        return found

    def add(self, index: int, members: Members) -> bool:
        """An entry was appended; False if it is no step from the last (a broken log).

        A controller that joins has a configuration of its own as generation 0: the leader has
        judged that step.
        """
        is_first = self.latest.generation == 0 and members.generation == 1
        if not is_first and not is_one_step(self.latest, members):
            return False
        self._changes.append((index, members))
        return True

    def forget_from(self, index: int) -> None:
        """The log was truncated."""
        while self._changes and self._changes[-1][0] >= index:
            self._changes.pop()

    def begin_with(self, base: Members, index: int) -> None:
        """The log begins with a snapshot of that index: it says all that was changed up to there.

        A leader may well send entries of before once more.
        """
        self._base, self._base_index, self._changes = base, index, []

    def compact(self, index: int) -> None:
        """Nothing at or below `index` is truncated any more: it is committed."""
        self._base = self.at(index)
        self._base_index = max([self._base_index, *(at for at, _ in self._changes if at <= index)])
        self._changes = [change for change in self._changes if change[0] > index]


def _members_to_json(members: Mapping[ControllerId, Member]) -> dict[str, list[str]]:
    return {name: [m.raft, m.client, m.store] for name, m in sorted(members.items())}


def _read_members_map(document: object) -> dict[ControllerId, Member]:
    if not isinstance(document, dict):
        raise PeerError("a member list that is no object")
    found: dict[ControllerId, Member] = {}
    for name, parts in sorted(document.items()):
        is_list = isinstance(parts, list) and len(parts) == 3
        if not is_list or not all(isinstance(part, str) for part in parts):
            raise PeerError("a member list with a member that is none")
        raft, client, store = parts
        if _ID.fullmatch(name) is None or _STORE.fullmatch(store) is None:
            raise PeerError("a member list with a strange id or store")
        if max(len(raft), len(client)) > ADDRESS_LENGTH_MAX:
            raise PeerError("a member list with an address that is too long")
        found[ControllerId(name)] = Member(raft=raft, client=client, store=store)
    return found


def _refused(sentence: str) -> CommandRefusedError:
    return CommandRefusedError(sentence, reason="MEMBERS_REFUSED")
