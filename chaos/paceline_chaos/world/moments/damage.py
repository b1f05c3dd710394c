"""A bit flips below confirm, on a replica and then on the master (R24)."""

from functools import partial

from paceline_chaos.world.all_ack.questions import fell_silent, unseen
from paceline_chaos.world.nodes import BrokerNode
from paceline_chaos.world.run import Result
from paceline_chaos.world.script import Director, Steps

REPAIRED_MS_MAX = 30_000


def damaged(d: Director) -> Steps:
    """The scrubber finds it; the node is mended by a member and in the set again."""
    yield d.is_whole
    yield d.pass_ms(500)
    for node in (d.replicas[0], d.master):
        assert node.broker is not None
        care = node.broker.role.care
        began_us = d.stage.simulation.now_us
        d.begin("disk_flip", node.name, for_ms=1, region=1)
        d.saw("flips")
        yield partial(_is_mended, d, node, care.repaired_count)
        took_ms = (d.stage.simulation.now_us - began_us) / 1000
        d.expect(took_ms <= REPAIRED_MS_MAX, f"{node.name} was mended after {took_ms:.0f} ms")
        d.saw("repairs")
        yield d.is_whole
    d.mark("after")


def _is_mended(d: Director, node: BrokerNode, before: int) -> bool:
    """Whether there was another repair; watches what must hold as long as the log is damaged."""
    assert node.broker is not None
    role = node.broker.role
    damage = role.care.damage
    if damage is not None:
        d.expect(not role.is_healthy(), f"{node.name} is damaged and calls itself healthy")
        is_kept = role.reader.is_damaged(damage.position, damage.mark)
        d.expect(is_kept, f"{node.name} would serve damaged bytes")
        d.saw("damages")
    return role.care.repaired_count > before


def mended(result: Result) -> list[str]:
    """R24: both were mended without an operator, and sends went on."""
    return [
        *unseen(result, flips=2, repairs=2),
        *fell_silent(result, since="after"),
    ]
