"""The clients of a run: each does its jobs until it is over, and records every operation.

Knows nothing of simulations: it takes addresses, ports and a recorder, and runs on any event loop.
An operating error is an outcome and never ends a job; anything else is a bug and is raised.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError, TopicNotFoundError
from paceline.platform.runtime import pause
from paceline.wire.topics import MIXED
from paceline_chaos.cluster_sim.doors.loading import load_grpc
from paceline_chaos.cluster_sim.doors.remoting.clients import RemotingClients
from paceline_chaos.cluster_sim.jobs.altering import Alterer
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import OrderedConsumer, Pusher
from paceline_chaos.cluster_sim.jobs.delaying import Delayer
from paceline_chaos.cluster_sim.jobs.filtering import Filterer
from paceline_chaos.cluster_sim.jobs.flooding import Flooder
from paceline_chaos.cluster_sim.jobs.hooking import Hooker
from paceline_chaos.cluster_sim.jobs.inorder import InOrder, slow_member
from paceline_chaos.cluster_sim.jobs.moving import Broadcaster, Mover
from paceline_chaos.cluster_sim.jobs.operating import Operator, Rescuer
from paceline_chaos.cluster_sim.jobs.permitting import Permitter
from paceline_chaos.cluster_sim.jobs.polling import LitePoller
from paceline_chaos.cluster_sim.jobs.popping import DeadLetters, Popper
from paceline_chaos.cluster_sim.jobs.posting import Poster
from paceline_chaos.cluster_sim.jobs.producing import OtherSender, Requester
from paceline_chaos.cluster_sim.jobs.querying import Querier
from paceline_chaos.cluster_sim.jobs.reading import Beyond, Puller, Reader
from paceline_chaos.cluster_sim.jobs.remapping import Remapper
from paceline_chaos.cluster_sim.jobs.resending import Resender
from paceline_chaos.cluster_sim.jobs.sending import Sender, hasty_sender
from paceline_chaos.cluster_sim.jobs.topics import TopicMaker
from paceline_chaos.cluster_sim.jobs.transacting import Transactor
from paceline_chaos.cluster_sim.rights.securing import (
    RightsOperator,
    key_operator,
    resting_operator,
)
from paceline_chaos.cluster_sim.rights.tenants import Tenant
from paceline_chaos.cluster_sim.rights.working import WorkingTenant

TOPIC = "orders"
"""The topic that clients use."""


class Job(Protocol):
    """One kind of work."""

    async def run(self) -> None: ...


def grpc_clients(around: Around) -> Job:
    """Clients of RocketMQ's gRPC protocol. ConfigError: protobuf is not installed."""
    job: Job = load_grpc().clients.GrpcClients(around)
    return job


def door_tenant(around: Around) -> Job:
    """A tenant at gateways. ConfigError: as above."""
    job: Job = load_grpc().at_doors.DoorTenant(around)
    return job


JOBS: dict[str, Callable[[Around], Job]] = {
    "send": Sender,
    "read": Reader,
    "pull": Puller,
    "push": Pusher,
    "ordered": OrderedConsumer,
    "topics": TopicMaker,
    "post": Poster,
    "operate": Operator,
    "hasty": hasty_sender,
    "ways": OtherSender,
    "request": Requester,
    "rescue": Rescuer,
    "alter": Alterer,
    "pop": Popper,
    "fail": DeadLetters,
    "delay": Delayer,
    "transact": Transactor,
    "inorder": InOrder,
    "inorder-slow": slow_member,
    "move": Mover,
    "broadcast": Broadcaster,
    "remap": Remapper,
    "lite": LitePoller,
    "resend": Resender,
    "filter": Filterer,
    "permit": Permitter,
    "hook": Hooker,
    "query": Querier,
    "flood": Flooder,
    "beyond": Beyond,
    "rights": RightsOperator,
    "rights-rests": resting_operator,
    "keys": key_operator,
    "tenant": Tenant,
    "tenant-work": WorkingTenant,
    "tenant-doors": door_tenant,
    "grpc": grpc_clients,
    "remoting": RemotingClients,
}
"""Names in topologies and scenario files."""


async def run_client(jobs: Sequence[str], around: Around) -> None:
    """Do all jobs at the same time until `around.is_over()`; returns when all have ended.

    Raises an ExceptionGroup with what no client may raise. Cancelling ends it at once.
    """
    async with asyncio.TaskGroup() as group:
        for name in jobs:
            group.create_task(JOBS[name](around).run(), name=f"{around.client}-{name}")


async def create_topic(around: Around, *, queues: int, timeout_ms: int = 20_000) -> Any:
    """Make the topic in every broker group; its `TopicView`. Raises PacelineError in the end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    while True:
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=5_000) as admin:
                try:
                    return await admin.topics.get(around.topic)
                except TopicNotFoundError:
                    return await admin.topics.create(
                        around.topic, queues=queues, message_type=MIXED
                    )
        except PacelineError:
            if loop.time() > deadline:
                raise
            await pause(100)
        finally:
            await cluster.close()
