"""Fencing tokens of the queue locks that the gateway holds for clients (R33)."""

from paceline.types import GroupName

LockKey = tuple[str, str, str, str, int]
Token = tuple[int, int]


class Locks:
    """Tokens by (group, client, topic, broker group, queue). Owned by one user."""

    def __init__(self) -> None:
        self._tokens: dict[LockKey, Token] = {}

    def token_of(
        self, group: str, client_id: str, topic: str, broker_group: GroupName, queue_id: int
    ) -> Token | None:
        """None: the client holds no lock that we know of."""
        return self._tokens.get((group, client_id, topic, broker_group, queue_id))

    def held(self, key: LockKey, token: Token) -> None:
        self._tokens[key] = token

    def lost(self, key: LockKey) -> Token | None:
        return self._tokens.pop(key, None)

    def gone(self, client_id: str) -> None:
        """A client has left: its locks run out."""
        for key in [key for key in self._tokens if key[1] == client_id]:
            del self._tokens[key]
