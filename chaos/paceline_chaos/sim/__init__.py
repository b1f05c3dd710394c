"""The simulated world: machines, processes and a network in one Python process, on virtual time.

The product runs on it unmodified: asyncio's and aiohttp's own code above, simulated sockets and
clocks below. Everything is drawn from one seed, so a failing run can be repeated to the last byte.

    with Simulation("7") as world:                     # patches stand inside only
        server = world.machine("b1").start(serve)      # serve: a function -> coroutine
        client = world.machine("c1").start(use_it)     # a machine: 10.0.0.n, a name, a clock
        world.run(5.0)                                  # until 5 virtual seconds
        world.cut("c1", "b1", is_one_way=True)          # c1's bytes are held from now on
        server.kill()                                   # no `finally` runs
        world.heal()
        world.machine("b1").start(serve)                # the next incarnation
        world.run(lambda: client.is_dead, limit_s=60)   # until a condition; SimStuck if not
        assert client.error is None and not world.errors
        print(world.digest())                           # equal for equal seeds

What is of interest has to be taken out before the `with` ends: then coroutines are closed, and
their `finally` blocks run where nobody looks. `Simulation(seed, keeps_log=True)` keeps a text of
all that happened (`world.loop.trace.log`), and `first_difference` shows where two such logs part.

Code in a process gets its clock as `machine.clock`, its chance as
`paceline.platform.runtime.SeededRandom`, its disk as `paceline.platform.disk_memory.MemoryDisk`.
`Process`: kill, pause, resume, signal, block (in a system call), on_end. `Machine`: start,
power_off, boot, set_clock. `Simulation`: cut, isolate, heal, delay, reset.

What is not simulated: TLS, IPv6, UDP, bandwidth, processor time (a handle costs 1 us), threads. A
process that kills itself in the middle of a handle (a fuse of its disk) still unwinds that one
stack; it reaches no socket any more, and its disk has to refuse too.
"""

from paceline_chaos.sim.loop import SimDeadlock, SimLoop, SimStuck
from paceline_chaos.sim.machine import Machine, MachineClock
from paceline_chaos.sim.network import Network
from paceline_chaos.sim.process import Process, State
from paceline_chaos.sim.simulation import Simulation
from paceline_chaos.sim.trace import first_difference

__all__ = [
    "Machine",
    "MachineClock",
    "Network",
    "Process",
    "SimDeadlock",
    "SimLoop",
    "SimStuck",
    "Simulation",
    "State",
    "first_difference",
]
