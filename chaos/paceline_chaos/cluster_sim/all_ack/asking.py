"""One message more, by a client that does not wait for better times."""

from paceline.errors import InSyncReplicasNotEnoughError, PacelineError
from paceline.message import Message
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.sending import asking_to_send, enter_sent
from paceline_chaos.cluster_sim.script import Director


async def _send_once(d: Director, around: Around, number: int) -> None:
    """One message that does not wait for better times."""
    settings = ProducerSettings(delivery_timeout_ms=400, request_timeout_ms=300)
    cluster = around.cluster()
    producer = Producer(cluster, settings=settings)
    value = f"{around.client}-once-{number}"
    body = make_body(value, 40)
    try:
        await producer.start()
        asking = asking_to_send(around, value, body, session=value)
        try:
            result = await producer.send(Message(around.topic, body))
        except PacelineError as error:
            asking.raised(error)
            is_refusal = isinstance(error, InSyncReplicasNotEnoughError)
            d.saw("definitely refused" if is_refusal else f"ended with {error.code}")
        else:
            enter_sent(asking, result)
            d.saw("acknowledged by one")
    finally:
        await producer.close(timeout_ms=0)
        await cluster.close()


def ask_once(d: Director, number: int) -> None:
    """Have it sent from the machine of client-3; the director sees how it ends."""
    around = d.stage.around("client-3", incarnation=100 + number)
    machine = d.stage.simulation.machine("client-3")
    machine.start(lambda: _send_once(d, around, number), name=f"once-{number}")
