"""A simulated computer: a name, an address, a clock of its own, and the processes on it."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from paceline_chaos.sim.loop import SimLoop
from paceline_chaos.sim.process import Process

UNIX_START_NS = 1_750_000_000 * 1_000_000_000
"""Wall time when a simulation begins."""
PORT_FIRST = 32768
"""Linux: the first port that is given to a socket without one."""


class Network(Protocol):
    """What a machine asks of the network."""

    def next_number(self) -> int: ...

    def answer_unheard(self, peers: list[Any], /) -> None: ...


class MachineClock:
    """The Clock port of one machine. Survives its processes."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine

    def monotonic_ms(self) -> int:
        return self._machine.local_ns() // 1_000_000

    def unix_ms(self) -> int:
        return self._machine.unix_ns() // 1_000_000


class Machine:
    """Made by `Simulation.machine`. `start` a program on it, then use the `Process`."""

    def __init__(self, loop: SimLoop, network: Network, *, name: str, ip: str, number: int) -> None:
        self.loop = loop
        self.network = network
        self.name = name
        self.ip = ip
        self.number = number
        self.is_up = True
        self.clock = MachineClock(self)
        self.processes: list[Process] = []
        self.bound: dict[tuple[str, int], Any] = {}
        """Sockets (`SimSocket`, which lies above) by local address, those that bound it."""
        self.unheard: dict[Any, None] = {}
        """Peers that talk to this machine while it is off."""
        self._port = PORT_FIRST
        self._rate = 1.0
        self._base_local_ns = 0
        self._base_ns = 0
        self._wall_step_ns = 0

    def __repr__(self) -> str:
        return f"<Machine {self.name} {self.ip}>"

    # -- clock -------------------------------------------------------------------------------------

    def local_ns(self) -> int:
        """The monotonic clock of this machine."""
        now_ns, process = self.loop.now_ns, self.loop.current
        if process.busy_until_ns > now_ns and process.machine is self:
            now_ns = process.busy_until_ns
        elapsed = now_ns - self._base_ns
        if self._rate != 1.0:
            elapsed = int(elapsed * self._rate)
        return self._base_local_ns + elapsed

    def global_ns(self, local_ns: int) -> int:
        """The moment at which the local clock will show `local_ns`; not before."""
        ahead = local_ns - self._base_local_ns
        if self._rate != 1.0:
            ahead = int(ahead / self._rate) + 1
        return self._base_ns + ahead

    def unix_ns(self) -> int:
        return UNIX_START_NS + self.local_ns() + self._wall_step_ns

    def set_clock(
        self, *, offset_ms: float = 0, rate: float = 1.0, wall_step_ms: float = 0
    ) -> None:
        """Move the clock on by `offset_ms`, let it run at `rate`, step the wall clock only.

        The offset of a running machine must not be negative: monotonic clocks never go back.
        """
        assert offset_ms >= 0, offset_ms
        assert rate > 0, rate
        local_ns = self.local_ns() + int(offset_ms * 1_000_000)
        self._base_local_ns, self._base_ns = local_ns, self.loop.now_ns
        self._rate = rate
        self._wall_step_ns += int(wall_step_ms * 1_000_000)
        self.loop.note(f"clock of {self.name}: {offset_ms} {rate} {wall_step_ms}")
        self.loop.retime(self)

    # -- processes ---------------------------------------------------------------------------------

    def start(self, main: Callable[[], Coroutine[Any, Any, object]], *, name: str = "") -> Process:
        """Run a program in a process of its own; boots the machine if it is off.

        When `main` returns or raises, the process is over, as after `asyncio.run`.
        """
        if not self.is_up:
            self.boot()
        process = self.loop_process(name or self.name)
        self.processes.append(process)
        process.begin(main)
        return process

    def loop_process(self, name: str) -> Process:
        number = self.network.next_number()
        return Process(self.loop, number, name, self)

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes if not process.is_dead]

    def power_off(self) -> None:
        """All processes stop and nobody hears of it until the machine is booted again."""
        self.loop.note(f"{self.name} has no power")
        self.is_up = False
        for process in self.living:
            process.vanish()
        self.bound.clear()

    def boot(self) -> None:
        """The kernel is back: who still talks to connections of before gets RST, a bit later."""
        if not self.is_up:
            self.is_up = True
            self.loop.note(f"{self.name} boots")
            unheard, self.unheard = self.unheard, {}
            self.network.answer_unheard(list(unheard))

    def free_port(self) -> int:
        while True:
            self._port = self._port + 1 if self._port < 60_999 else PORT_FIRST
            if not any(port == self._port for _, port in self.bound):
                return self._port
