"""What clients are on the outside: opened by `async with`, closed once."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Opened(ABC):
    """A client on one event loop; `async with`, or `start` and `close`."""

    @abstractmethod
    async def start(self, *, timeout_ms: int = 10_000) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def _give_up(self) -> None:
        """It could not be started."""
        await self.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self._give_up()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
