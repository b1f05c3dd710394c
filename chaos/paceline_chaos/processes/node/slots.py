"""Pure: faults that a node does to itself, as slots of its control page (control.py)."""

from paceline_chaos.faults.plan import Fault

_MILLION = 1_000_000
SLOTS = frozenset({"disk_fail", "disk_stall", "disk_full", "clock_step", "clock_rate"})


def slot_of(fault: Fault) -> tuple[str, int]:
    """The slot of the control page, and its value."""
    details = fault.details
    if fault.kind == "disk_fail":
        slot = "write_failures" if details.get("call", 0) else "sync_failures"
        return slot, int(details.get("count", 1))
    if fault.kind == "disk_stall":
        return "sync_delay_ms", int(details.get("delay_ms", 1000))
    if fault.kind == "disk_full":
        return "is_full", 1
    if fault.kind == "clock_step":
        return "wall_offset_ms", int(details["offset_ms"])
    assert fault.kind == "clock_rate", fault
    return "rate_ppm", int((details["rate"] - 1) * _MILLION)
