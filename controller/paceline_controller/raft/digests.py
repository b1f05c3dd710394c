"""Pure: whether the machines of all controllers are the same (INV-10).

Every controller takes the digest of its machine at the same indices and tells the others. At one
index the digests of most voters are right; who has another one has applied something else and must
not go on. A strict majority is needed to say so: with a tie nobody stops, and all complain.
"""

from collections.abc import Set

from paceline.types import ControllerId

INDICES_MAX = 16
"""Digests of so many indices are kept of each controller; nodes are rarely that far apart."""


class Digests:
    """What the controllers said about themselves, this one included."""

    def __init__(self, own: ControllerId) -> None:
        self._own = own
        self._said: dict[ControllerId, dict[int, bytes]] = {}

    def note(self, controller: ControllerId, index: int, digest: bytes) -> None:
        """The machine of that controller has that digest after that index."""
        said = self._said.setdefault(controller, {})
        said[index] = digest
        while len(said) > INDICES_MAX:
            del said[min(said)]

    def latest(self) -> tuple[int, bytes] | None:
        """Of this controller, to be told to whoever comes."""
        own = self._said.get(self._own, {})
        return (max(own), own[max(own)]) if own else None

    def forget_own(self) -> None:
        """The machine was replaced by a snapshot."""
        self._said.pop(self._own, None)

    def deviants(self, index: int, voters: Set[ControllerId]) -> tuple[bool, list[ControllerId]]:
        """(whether this one differs from most voters, those that differ from this one)."""
        own = self._said.get(self._own, {}).get(index)
        if own is None:
            return False, []
        found = {
            name: self._said[name][index]
            for name in sorted(voters | {self._own})
            if index in self._said.get(name, {})
        }
        others = [name for name, digest in found.items() if digest != own]
        votes = [digest for name, digest in found.items() if name in voters and digest != own]
        is_minority = any(votes.count(digest) > len(voters) / 2 for digest in set(votes))
        return is_minority, others
