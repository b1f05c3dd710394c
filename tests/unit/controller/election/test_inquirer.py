"""What controllers tell each other of the brokers they hear (R15)."""

from tests.support.controller.builders import G1
from tests.support.controller.harness import TalkingBroker, controllers, eventually, free_address
from tests.support.rights import a_security

from paceline.security.node_tls import Dial
from paceline.types import Incarnation, ReplicaId
from paceline_controller.election.contacts import Inquiry, ReplicaKey
from paceline_controller.leader.inquirer import Inquirer

REPLICA = Inquiry(key=ReplicaKey(G1, ReplicaId(1)), incarnation=Incarnation(1), number=1)
NOBODY = Inquiry(key=ReplicaKey(G1, ReplicaId(7)), incarnation=Incarnation(1), number=2)


async def test_a_controller_tells_what_it_heard_and_one_that_is_dead_tells_nothing() -> None:
    async with controllers(2) as cluster:
        broker = TalkingBroker(cluster, 1)
        inquirer = Inquirer(
            lambda: (str(cluster.addresses[1]), str(free_address())),
            source_host="",
            dial=Dial(),
            proofs=cluster.leader.proofs,
        )
        for node in cluster.nodes.values():
            node.access.apply(a_security())
        await inquirer.start()
        try:
            await broker.join()
            follower = cluster.nodes[cluster.ids[1]].supervisor.liveness
            await eventually(lambda: follower.report(G1, ReplicaId(1)), "the follower hears it")

            [heard] = (await inquirer.ask(REPLICA)).heard
            nobody = await inquirer.ask(NOBODY)

            assert heard.heartbeat.replica_id == 1
            assert 0 <= heard.age_ms < 10_000
            assert nobody.heard == ()
        finally:
            await inquirer.stop()
            await broker.stop()


async def test_a_question_about_no_replica_is_refused() -> None:
    async with controllers() as cluster:
        status, problem = await cluster.ask("GET", "/v1/heard/g1/x")
        assert (status, problem["code"]) == (404, "NOT_FOUND")
