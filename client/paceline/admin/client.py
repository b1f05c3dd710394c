"""The admin client: topics, groups, messages, and the state of a cluster, each in a part."""

import asyncio
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from paceline.admin.audit import Audit
from paceline.admin.broker_groups import BrokerGroups
from paceline.admin.clients import Clients
from paceline.admin.consumer_groups import ConsumerGroups
from paceline.admin.controllers import Controllers
from paceline.admin.dead_letters import DeadLetters
from paceline.admin.messages import Messages
from paceline.admin.pins import Pins
from paceline.admin.requests import AdminRequests
from paceline.admin.topics import Topics
from paceline.admin.users import Policies, Quotas, SecurityMode, Users
from paceline.net.cluster import Cluster
from paceline.net.connect import Bootstrap
from paceline.queues import broker_addresses
from paceline.wire.cluster import ClusterView
from paceline.wire.controller_calls.quorum import GetCluster

Arguments = ParamSpec("Arguments")
PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")


def _former(
    part: str, method: Callable[Concatenate[PartT, Arguments], ResultT]
) -> Callable[Concatenate["AdminClient", Arguments], ResultT]:
    """The name that a method of a part had on the client itself."""

    @wraps(method)
    def call(admin: "AdminClient", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> ResultT:
        return method(getattr(admin, part), *args, **kwargs)

    return call


class AdminClient:
    """Administration of one cluster; `async with` or `close`. All calls have `timeout_ms`.

    Its parts have the calls: `admin.topics.create("orders")`, `admin.broker_groups.transfer("g1")`.
    """

    def __init__(self, bootstrap: Bootstrap | Cluster, *, timeout_ms: int = 10_000) -> None:
        """`bootstrap`: "host:port,..." of controllers or brokers. `timeout_ms` is for each call."""
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap)
        self._requests = requests = AdminRequests(self._cluster, timeout_ms=timeout_ms)
        self.topics = Topics(requests)
        self.consumer_groups = ConsumerGroups(requests)
        self.dead_letters = DeadLetters(requests)
        self.messages = Messages(requests, self.consumer_groups)
        self.clients = Clients(requests)
        self.broker_groups = BrokerGroups(requests)
        self.pins = Pins(requests)
        self.controllers = Controllers(requests)
        self.users = Users(requests)
        self.policies = Policies(requests)
        self.quotas = Quotas(requests)
        self.audit = Audit(requests)
        self.security = SecurityMode(requests)

    async def __aenter__(self) -> "AdminClient":
        self._cluster.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect."""
        if self._owns_cluster:
            await self._cluster.close()

    async def view(self) -> ClusterView:
        """The cluster as its controllers publish it, asked now."""
        return await self._requests.view()

    async def cluster_status(self) -> dict[str, Any]:
        """The controllers' view of the cluster and, under `brokers`, what each broker says itself.

        `brokers` maps client address -> its `/v1/status`, or None if it does not answer.
        """
        document = await self._requests.read(GetCluster())
        addresses = broker_addresses(await self._requests.view())
        ask = self._requests.ask
        answers = await asyncio.gather(*(ask(address, "/v1/status") for address in addresses))
        return {**document, "brokers": dict(zip(addresses, answers, strict=True))}

    # -- former names, for one version ------------------------------------------------------------

    create_topic = _former("topics", Topics.create)
    alter_topic = _former("topics", Topics.alter)
    delete_topic = _former("topics", Topics.delete)
    topic = _former("topics", Topics.get)
    remap_queue = _former("topics", Topics.remap_queue)
    wait_remapped = _former("topics", Topics.wait_remapped)
    create_consumer_group = _former("consumer_groups", ConsumerGroups.create)
    alter_consumer_group = _former("consumer_groups", ConsumerGroups.alter)
    delete_consumer_group = _former("consumer_groups", ConsumerGroups.delete)
    consumer_group = _former("consumer_groups", ConsumerGroups.get)
    consumer_lag = _former("consumer_groups", ConsumerGroups.lag)
    consumer_members = _former("consumer_groups", ConsumerGroups.members)
    reset_offsets = _former("consumer_groups", ConsumerGroups.reset_offsets)
    clone_offsets = _former("consumer_groups", ConsumerGroups.clone_offsets)
    dead_letter = _former("dead_letters", DeadLetters.get)
    resend_dead_letters = _former("dead_letters", DeadLetters.resend)
    purge_dead_letters = _former("dead_letters", DeadLetters.purge)
    message = _former("messages", Messages.get)
    find_messages = _former("messages", Messages.find)
    track = _former("messages", Messages.track)
    group = _former("broker_groups", BrokerGroups.get)
    set_group_settings = _former("broker_groups", BrokerGroups.set_settings)
    set_write_permission = _former("broker_groups", BrokerGroups.set_write_permission)
    elect = _former("broker_groups", BrokerGroups.elect)
    transfer = _former("broker_groups", BrokerGroups.transfer)
    history = _former("broker_groups", BrokerGroups.history)
    epochs = _former("broker_groups", BrokerGroups.epochs)
    clean_replica = _former("broker_groups", BrokerGroups.remove_replica)
    clean_group = _former("broker_groups", BrokerGroups.remove)
    presented_stores = _former("broker_groups", BrokerGroups.presented_stores)
    recover = _former("broker_groups", BrokerGroups.recover)
    forget_store = _former("broker_groups", BrokerGroups.forget_store)
    add_pin = _former("pins", Pins.add)
    remove_pin = _former("pins", Pins.remove)
    members = _former("controllers", Controllers.members)
    transfer_leadership = _former("controllers", Controllers.transfer_leadership)
    add_controller = _former("controllers", Controllers.add)
    remove_controller = _former("controllers", Controllers.remove)
