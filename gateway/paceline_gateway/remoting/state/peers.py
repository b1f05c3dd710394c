"""One client's connection as handlers see it: what it is answered, asked and told.

The socket is behind `Peer.write` (server.py); a simulated world puts something else there.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from paceline.errors import DeadlineError, OverloadedError, PacelineError, PeerError
from paceline.platform.ports import Buffer
from paceline.types import GroupName
from paceline_gateway.remoting.codec.codes import FLAG_ONEWAY
from paceline_gateway.remoting.codec.errors import answer_code, remark_of
from paceline_gateway.remoting.codec.frames import JSON, Command
from paceline_gateway.remoting.codec.message_ids import host_bytes

log = logging.getLogger("paceline.gateway")


class Place(NamedTuple):
    """Which listener a client has come to, and by which address it knows this gateway."""

    group: GroupName | None
    """The broker group; None: the name server."""
    host: str
    port: int


class Peer:
    """Owned by its connection; all calls on the event loop."""

    def __init__(
        self, place: Place, source: str, write: Callable[[Command], None], close: Callable[[], None]
    ) -> None:
        """`source`: the client's address. `write`: puts a command on the wire; OverloadedError: the
        client does not read, so that there is no room for a body; what has none always finds some.
        """
        self.place = place
        self.source = source
        self.address = source
        """With the port, where it is known."""
        self.close = close
        self.is_encrypted = False
        self.certified: Collection[str] = ()
        """Users that its certificate is for."""
        self.client_id = ""
        """As its heartbeats say."""
        self.language = ""
        self.version = 0
        self.serialization = JSON
        self.store_host = host_bytes(place.host, place.port)
        self.is_open = True
        self.on_answer: Callable[[Command], None] = lambda request: None
        """A request is under way no more, whether or not it wants an answer."""
        self._write = write
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self._last_opaque = 0

    def answer(self, request: Command, answer: Command) -> None:
        """Answer a request, if it wants an answer."""
        self.on_answer(request)
        if not self.is_open or request.is_oneway:
            return
        try:
            self._write(answer)
        except OverloadedError as error:
            self._write(request.answer(answer_code(error), remark=remark_of(error)))

    def fail(self, request: Command, error: PacelineError) -> None:
        """Answer with an error."""
        self.answer(request, request.answer(answer_code(error), remark=remark_of(error)))

    def tell(self, code: int, fields: dict[str, str], body: Buffer = b"") -> None:
        """A request of ours that needs no answer. A client that does not read is not told: brokers
        ask again about transactions, and who waits for a reply gives up."""
        if not self.is_open:
            return
        try:
            self._write(self._command(code, fields, body, flag=FLAG_ONEWAY))
        except OverloadedError:
            log.info("not_told", extra={"code": code, "source": self.source})

    async def ask(
        self, code: int, fields: dict[str, str], body: Buffer = b"", *, timeout_ms: int
    ) -> Command:
        """A request of ours, and the client's answer. PeerError, DeadlineError; OverloadedError:
        the client does not read."""
        if not self.is_open:
            raise PeerError("the client has gone")
        command = self._command(code, fields, body, flag=0)
        waiter: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._asked[command.opaque] = waiter
        try:
            self._write(command)
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiter
        except TimeoutError:
            raise DeadlineError(f"the client did not answer within {timeout_ms} ms") from None
        finally:
            del self._asked[command.opaque]

    def answered(self, answer: Command) -> None:
        """The client has answered a request of ours; what nobody waits for is passed over."""
        waiter = self._asked.get(answer.opaque)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def gone(self) -> None:
        """The connection has ended."""
        self.is_open = False
        for waiter in self._asked.values():
            if not waiter.done():
                waiter.set_exception(PeerError("the client has gone"))

    def _command(self, code: int, fields: dict[str, str], body: Buffer, *, flag: int) -> Command:
        self._last_opaque = (self._last_opaque + 1) & 0x7FFF_FFFF
        return Command(
            code,
            fields,
            body,
            opaque=self._last_opaque,
            flag=flag,
            language="JAVA",
            serialization=self.serialization,
        )
