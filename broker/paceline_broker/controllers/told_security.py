"""Users and rights as controllers tell them, taken for the cluster that this broker belongs to."""

from collections.abc import Callable

from paceline.security.access import Access
from paceline.wire.users import Security
from paceline_broker.storage.security_file import SecurityFile


class ToldSecurity:
    """Begins with what is on disk. Owned by the broker's event loop."""

    def __init__(
        self, access: Access, file: SecurityFile, *, cluster_id: Callable[[], str | None]
    ) -> None:
        """`cluster_id`: what this store belongs to, None before it joins one. CorruptLogError."""
        self._access = access
        self._file = file
        self._cluster_id = cluster_id
        self._told: Security | None = None
        access.apply(file.load())

    def arrived(self, security: Security) -> None:
        """A controller has told it."""
        self._told = security
        self.look()

    def look(self) -> None:
        """Take what was told, if it is of the own cluster: that may have changed meanwhile, when an
        operator recovered the group elsewhere (R18)."""
        told = self._told
        is_own = told is not None and self._cluster_id() in (None, told.cluster_id)
        if told is not None and is_own and self._access.apply(told):
            self._file.save(told)

    async def close(self) -> None:
        await self._file.close()
