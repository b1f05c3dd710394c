"""The programs of one test, with a topic and a consumer group that no other test has."""

import itertools
from pathlib import Path
from typing import Any

from interop.jobs import Job
from interop.judge import Event, bodies, failures
from interop.programs import Program
from tests.interop.peers import Peer
from tests.support.process.harness import eventually


class Scene:
    """What a test starts ends with it."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.topic = self.group = ""
        self._folder = folder
        self._programs: list[Program] = []
        self._numbers = itertools.count()

    async def prepare(
        self,
        kind: str = "NORMAL",
        *,
        is_ordered: bool = False,
        retries_max: int = 16,
        is_broadcasting: bool = False,
    ) -> None:
        """Get the topic and the consumer group."""
        self.topic = await self.peer.topic(kind)
        self.group = await self.peer.group(
            is_ordered=is_ordered, retries_max=retries_max, is_broadcasting=is_broadcasting
        )

    def job(self, scenario: str, **fields: Any) -> Job:
        """For this test's topic and group, unless the fields say otherwise."""
        given = {"topic": self.topic, "group": self.group, **fields}
        return Job(
            scenario=scenario,
            endpoint=self.peer.grpc_endpoint,
            nameserver=self.peer.nameserver,
            **given,
        )

    async def start(self, client: str, job: Job) -> Program:
        """A program that is ready."""
        folder = self._folder / f"{next(self._numbers)}-{client}"
        program = await Program.start(client, job, folder)
        self._programs.append(program)
        await program.ready()
        return program

    async def send(self, client: str, job: Job) -> list[Event]:
        """All that a sender told."""
        return await (await self.start(client, job)).finish()

    async def refused(self, client: str, job: Job) -> str:
        """What a sender's user is told, at its start or for its message, when nothing is stored."""
        program = await Program.start(client, job, self._folder / f"{next(self._numbers)}-{client}")
        self._programs.append(program)
        told = await program.finish()
        assert bodies(told, "sent") == set()
        return "; ".join(failures(told))

    def logged(self, *words: str) -> bool:
        """Whether the log of any program, or of its library, has one of the words."""
        logs = (path for path in self._folder.rglob("*log") if path.is_file())
        texts = (path.read_text(errors="replace") for path in logs)
        return any(word in text for text in texts for word in words)

    async def dead_letters(self, count: int) -> None:
        """Wait until the consumer group has so many dead letters."""

        async def are_there() -> bool:
            return await self.peer.dead_letters_count(self.group) == count

        await eventually(are_there, within_ms=60_000, what=f"{count} dead letters")

    async def close(self) -> None:
        for program in self._programs:
            await program.kill()


async def came(consumer: Program, sent: list[Event], *, within_s: float = 60) -> None:
    """Wait until a consumer has received all that was acknowledged."""
    wanted = bodies(sent, "sent")
    await consumer.until(
        lambda events: wanted <= bodies(events, "received"),
        what=f"{len(wanted)} messages were received",
        within_s=within_s,
    )


async def acknowledged(consumer: Program, count: int, *, within_s: float = 60) -> None:
    """Wait until a consumer has told that it acknowledged so many deliveries."""
    await consumer.until(
        lambda events: sum(event["event"] == "acked" for event in events) >= count,
        what=f"{count} messages were acknowledged",
        within_s=within_s,
    )
