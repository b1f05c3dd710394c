"""What faults do to the disk of a node; when they begin and end is the injector's matter."""

from collections.abc import Callable

from paceline.platform.runtime import SeededRandom
from paceline_chaos.cluster_sim.nodes import DATA, BrokerNode, Node
from paceline_chaos.cluster_sim.stage import Stage
from paceline_chaos.faults.plan import Fault

End = Callable[[], None]
_EVICT_MS = 50


def disk_fault(stage: Stage, fault: Fault, node: Node) -> End | None:
    """Do it at once; how to end it, None if there is nothing to end."""
    if fault.kind == "disk_cold":  # nothing fails, so it excuses nothing
        return _chill(stage, node, delay_ms=fault.details.get("delay_ms", 20))
    node.excuse(fault.kind)
    disk = node.disk
    match fault.kind:
        case "disk_stall":
            disk.sync_delay_ms = fault.details.get("delay_ms", 300)

            def recover() -> None:
                node.disk.sync_delay_ms = stage.topology.sync_ms
                if node.process is not None:
                    node.process.unblock()

            return recover
        case "disk_full":
            disk.capacity_bytes = 0

            def free() -> None:
                node.disk.capacity_bytes = None

            return free
        case "disk_lost":
            node.hold()
            node.kill()
            node.empty_disk()
            return node.release
        case "disk_wiped" if isinstance(node, BrokerNode):
            node.hold()
            node.kill()
            node.wipe_log()
            return node.release
    raise AssertionError(f"unknown fault {fault.kind}")


def _chill(stage: Stage, node: Node, *, delay_ms: float) -> End:
    """Pages fall out of memory at once and every `_EVICT_MS`, on whatever disk the node has."""
    is_over: list[bool] = []

    def evict() -> None:
        if not is_over:
            node.disk.warm_delay_ms = delay_ms
            node.disk.evict()
            stage.at(stage.now_ms + _EVICT_MS, evict)

    def end() -> None:
        is_over.append(True)
        node.disk.warm_delay_ms = 0.0

    evict()
    return end


def flip(node: Node, fault: Fault, *, chance: SeededRandom) -> bool:
    """Flip one bit of the log, or make a stretch zeros, where there are bytes; whether there were
    any."""
    if not isinstance(node, BrokerNode):
        folder = f"{DATA}/raft"
        segments = [name for name in node.disk.list(folder) if name.startswith("journal-")]
        if not segments:
            return False
        name = f"raft/{segments[-1]}"
        file = node.disk.open(f"{DATA}/{name}")
        end = node.disk.size(file)
        file.close()
        if end:
            node.disk.flip_bit(f"{DATA}/{name}", int(chance.uniform(0, end)), 3)
            node.is_damaged = True
        return end > 0
    broker = node.broker
    if broker is None:
        return False
    positions = broker.role.status()
    limit = positions["confirm"] if fault.details.get("region") == 1 else positions["end"]
    firsts = [int(name[:20]) for name in node.segment_files()]
    if limit <= min(firsts, default=limit):
        return False
    at = max(min(firsts), int(chance.uniform(0, limit)))  # what lies lower was let go
    first = max(f for f in firsts if f <= at)
    path, bit = f"{DATA}/log/{first:020d}.log", int(chance.uniform(0, 8))
    zeros = int(fault.details.get("zeros", 0))
    if zeros:
        following = min((f for f in firsts if f > first), default=limit)
        node.disk.wipe(path, at - first, min(at + zeros, limit, following) - first)
    else:
        node.disk.flip_bit(path, at - first, bit)
    node.is_damaged = True
    return True


def lose_file(node: Node, fault: Fault, *, chance: SeededRandom) -> bool:
    """A file of the log is gone, whether somebody has it open or not; whether there was one."""
    if not isinstance(node, BrokerNode):
        return False
    files = node.segment_files()
    broker = node.broker
    if broker is not None:  # what is made ahead is empty, and nobody misses it
        end = broker.role.status()["end"]
        files = [name for name in files if int(name[:20]) < end]
    if not files:
        return False
    which = int(fault.details.get("which", 0))
    if which == 1:
        name = files[0]
    else:
        name = files[-1] if which == 2 else files[int(chance.uniform(0, len(files)))]
    node.disk.lose(f"{DATA}/log/{name}")
    node.is_damaged = True
    node.excuse(fault.kind)
    return True


def stale(stage: Stage, node: Node, hit: End) -> End:
    """Take a copy now; later the process dies and finds the copy."""
    copy = node.disk.crash_image(node.chance, keep_page_cache=True)
    copy.sync_delay_ms = stage.topology.sync_ms

    def put_back() -> None:
        if node.holds:
            return  # another fault has the node; a restore may well wait for another day
        hit()
        node.excuse("disk_stale")
        node.hold()
        node.kill()
        node.disk = copy
        stage.at(stage.now_ms + 200, node.release)

    return put_back
