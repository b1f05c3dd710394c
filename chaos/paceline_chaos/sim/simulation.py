"""The door to the simulated world; `paceline_chaos.sim` explains it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType

from paceline_chaos.sim.loop import SimLoop, SimStuck
from paceline_chaos.sim.machine import Machine
from paceline_chaos.sim.network import Network
from paceline_chaos.sim.patches import bury, patched
from paceline_chaos.sim.trace import Trace
from paceline_chaos.verdict import Violation

LIMIT_S = 3600.0
"""Of virtual time, for a condition that never comes true."""


class Simulation:
    """Owns loop, network and machines of one seed. A context manager: patches stand inside."""

    def __init__(self, seed: str | int, *, keeps_log: bool = False) -> None:
        self.seed = str(seed)
        self.loop = SimLoop(self.seed, trace=Trace(keeps_log=keeps_log))
        self.network = Network(self.loop, self.seed)
        self._stack = ExitStack()

    def __enter__(self) -> "Simulation":
        self._stack.enter_context(patched(self.loop, self.seed))
        self._stack.enter_context(self.loop.running())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.loop.close()
        processes = [p for machine in self.machines.values() for p in machine.processes]
        try:
            bury(self.loop, processes)
        finally:
            self._stack.close()

    # -- machines ----------------------------------------------------------------------------------

    def machine(self, name: str, *, ip: str | None = None) -> Machine:
        """The machine of that name; made when first asked for (10.0.0.1, 10.0.0.2 ...)."""
        machines = self.network.machines
        if name not in machines:
            number = len(machines) + 1
            address = ip or f"10.0.{number // 256}.{number % 256}"
            made = Machine(self.loop, self.network, name=name, ip=address, number=number)
            self.network.add(made)
        return machines[name]

    @property
    def machines(self) -> dict[str, Machine]:
        return self.network.machines

    # -- time --------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """Microseconds of virtual time since the beginning."""
        return self.loop.now_ns // 1000

    def run(
        self, until: float | Callable[[], bool] | None = None, *, limit_s: float = LIMIT_S
    ) -> None:
        """Run until that many seconds of virtual time, or until a condition holds.

        Raises SimStuck if the condition does not hold within `limit_s` from now, and SimDeadlock
        if it never can. Without `until`: until nothing can happen any more.
        """
        loop = self.loop
        if callable(until):
            end_ns = loop.now_ns + int(limit_s * 1_000_000_000)
            if not loop.advance(end_ns, condition=until):
                now_s = self.now_us / 1e6
                raise SimStuck(f"seed {self.seed}: not within {limit_s} s, at {now_s} s: {until}")
        elif until is None:
            loop.drain()
        else:
            loop.advance(int(until * 1_000_000_000))

    def run_for(self, seconds: float) -> None:
        self.loop.advance(self.loop.now_ns + int(seconds * 1_000_000_000))

    # -- faults ------------------------------------------------------------------------------------

    def cut(self, one: str, other: str, *, is_one_way: bool = False) -> None:
        """Hold what `one` sends to `other`, and unless it is one way also the other direction."""
        self.network.cut(one, other)
        if not is_one_way:
            self.network.cut(other, one)

    def isolate(self, name: str) -> None:
        """Cut a machine off from all others."""
        for other in self.machines:
            if other != name:
                self.cut(name, other)

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Heal the wires between two machines, of one machine, or all."""
        wanted = {name for name in (one, other) if name is not None}
        for source, target in list(self._cut_links()):
            if wanted <= {source, target}:
                self.network.heal(source, target)

    def _cut_links(self) -> Iterator[tuple[str, str]]:
        return self.network.cut_links()

    def delay(self, source: str, target: str, *, base_ms: float, jitter_ms: float) -> None:
        """Another latency of one direction."""
        self.network.set_latency(
            source, target, base_ns=int(base_ms * 1e6), jitter_ns=int(jitter_ms * 1e6)
        )

    def reset(self, one: str, other: str) -> int:
        """RST to both ends of every connection between two machines; says how many there were."""
        return self.network.reset(one, other)

    # -- results -----------------------------------------------------------------------------------

    @property
    def errors(self) -> list[str]:
        """What no task and no callback caught, in any process."""
        return self.loop.errors

    def errors_but(self, *expected: type[BaseException]) -> list[Violation]:
        """Those in which something else was raised than `expected`, or nothing."""
        loop = self.loop
        return [
            Violation(property=kind, sentence=text)
            for text, kind, types in zip(
                loop.errors, loop.error_kinds, loop.error_types, strict=True
            )
            if not types or types - set(expected)
        ]

    def digest(self) -> str:
        """Equal digests: the same things happened at the same times."""
        return self.loop.trace.digest()
