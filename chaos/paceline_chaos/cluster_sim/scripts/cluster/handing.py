"""A master that has asked to be replaced, and does not hear what came of it (R20)."""

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import GROUP, Director, Steps

_UNHEARD_MS = 450
"""Less than the heartbeat timeout of the other direction: nobody is deposed for it."""


def _order_transfer(d: Director) -> None:
    machine = d.stage.simulation.machine("client-3")
    around = d.stage.around("client-3", incarnation=300)

    async def order() -> None:
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=5_000) as admin:
                await admin.broker_groups.transfer(GROUP)
        except PacelineError as error:
            d.saw(f"transfer ended with {error.code}")
        else:
            d.saw("transfer carried out")
        finally:
            await cluster.close()

    machine.start(order, name="transfer")


def asked_and_unheard(d: Director) -> Steps:
    """Its request reaches the controllers, their answer and their news do not reach it, nor the
    client that goes on sending to it."""
    yield d.is_whole
    yield d.pass_ms(300)
    old = d.master
    mastership = d.mastership_of(old)
    assert mastership is not None

    def is_draining() -> bool:
        return bool(mastership.status()["is_draining"])

    _order_transfer(d)
    yield is_draining
    for target in (old.name, "client-1"):
        d.begin("cut", "controllers", other=target, for_ms=_UNHEARD_MS)
    end = mastership.end
    yield lambda: d.stage.master(GROUP) is not old
    d.saw("replaced unheard")
    yield d.pass_ms(250)
    d.expect(d.mastership_of(old) is mastership, "it has heard of its successor")
    d.expect(is_draining(), "it takes messages without knowing what became of its request (R20)")
    d.expect(mastership.end == end, "it appended without knowing what became of its request (R20)")
    yield d.is_whole
    d.mark("whole")


def was_unheard(result: Result) -> list[str]:
    return [
        *unseen(result, replaced_unheard=1),
        *fell_silent(result, since="whole"),
        *unequal_logs(result),
    ]
