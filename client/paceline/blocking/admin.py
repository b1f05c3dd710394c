"""The blocking twin of the admin client."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, cast

from paceline.admin.audit import Audit
from paceline.admin.audit_pages import Wanted
from paceline.admin.broker_groups import BrokerGroups
from paceline.admin.client import AdminClient
from paceline.admin.clients import Clients
from paceline.admin.consumer_groups import ConsumerGroups
from paceline.admin.controllers import Controllers
from paceline.admin.dead_letters import DeadLetters
from paceline.admin.messages import Messages
from paceline.admin.pins import Pins
from paceline.admin.topics import Topics
from paceline.admin.users import Policies, Quotas, SecurityMode, Users
from paceline.blocking.twin import Blocking, Part, waits
from paceline.net.connect import Bootstrap


class BlockingMessages(Part[Messages]):
    """`BlockingAdminClient.messages`."""

    get = waits(Messages.get)
    track = waits(Messages.track)

    def find(
        self,
        topic: str,
        *,
        key: str | None = None,
        unique_key: str | None = None,
        begin_unix_ms: int | None = None,
        end_unix_ms: int | None = None,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """As `Messages.find`, the first `limit` of them."""

        async def find() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = []
            found = self._client.find(
                topic,
                key=key,
                unique_key=unique_key,
                begin_unix_ms=begin_unix_ms,
                end_unix_ms=end_unix_ms,
            )
            async with aclosing(cast(AsyncGenerator[dict[str, Any], None], found)):
                async for row in found:
                    if len(rows) >= limit:
                        break
                    rows.append(row)
            return rows

        return self._thread.call(find)


class BlockingTopics(Part[Topics]):
    """`BlockingAdminClient.topics`."""

    all = waits(Topics.all)
    get = waits(Topics.get)
    create = waits(Topics.create)
    alter = waits(Topics.alter)
    delete = waits(Topics.delete)
    remap_queue = waits(Topics.remap_queue)
    wait_remapped = waits(Topics.wait_remapped)
    __call__ = waits(Topics.__call__)


class BlockingConsumerGroups(Part[ConsumerGroups]):
    """`BlockingAdminClient.consumer_groups`."""

    all = waits(ConsumerGroups.all)
    get = waits(ConsumerGroups.get)
    create = waits(ConsumerGroups.create)
    alter = waits(ConsumerGroups.alter)
    delete = waits(ConsumerGroups.delete)
    lag = waits(ConsumerGroups.lag)
    members = waits(ConsumerGroups.members)
    members_of = waits(ConsumerGroups.members_of)
    reset_offsets = waits(ConsumerGroups.reset_offsets)
    clone_offsets = waits(ConsumerGroups.clone_offsets)
    __call__ = waits(ConsumerGroups.__call__)


class BlockingDeadLetters(Part[DeadLetters]):
    """`BlockingAdminClient.dead_letters`."""

    all = waits(DeadLetters.all)
    get = waits(DeadLetters.get)
    resend = waits(DeadLetters.resend)
    purge = waits(DeadLetters.purge)
    __call__ = waits(DeadLetters.__call__)


class BlockingClients(Part[Clients]):
    """`BlockingAdminClient.clients`."""

    all = waits(Clients.all)
    __call__ = waits(Clients.__call__)


class BlockingBrokerGroups(Part[BrokerGroups]):
    """`BlockingAdminClient.broker_groups`."""

    get = waits(BrokerGroups.get)
    set_settings = waits(BrokerGroups.set_settings)
    set_write_permission = waits(BrokerGroups.set_write_permission)
    elect = waits(BrokerGroups.elect)
    transfer = waits(BrokerGroups.transfer)
    history = waits(BrokerGroups.history)
    epochs = waits(BrokerGroups.epochs)
    remove = waits(BrokerGroups.remove)
    remove_replica = waits(BrokerGroups.remove_replica)
    presented_stores = waits(BrokerGroups.presented_stores)
    recover = waits(BrokerGroups.recover)
    forget_store = waits(BrokerGroups.forget_store)


class BlockingPins(Part[Pins]):
    """`BlockingAdminClient.pins`."""

    all = waits(Pins.all)
    add = waits(Pins.add)
    remove = waits(Pins.remove)
    __call__ = waits(Pins.__call__)


class BlockingControllers(Part[Controllers]):
    """`BlockingAdminClient.controllers`."""

    all = waits(Controllers.all)
    members = waits(Controllers.members)
    transfer_leadership = waits(Controllers.transfer_leadership)
    add = waits(Controllers.add)
    remove = waits(Controllers.remove)
    __call__ = waits(Controllers.__call__)


class BlockingUsers(Part[Users]):
    """`BlockingAdminClient.users`."""

    all = waits(Users.all)
    get = waits(Users.get)
    create = waits(Users.create)
    alter = waits(Users.alter)
    delete = waits(Users.delete)
    add_key = waits(Users.add_key)
    remove_key = waits(Users.remove_key)
    set_password = waits(Users.set_password)
    change_password = waits(Users.change_password)
    end_logins = waits(Users.end_logins)


class BlockingPolicies(Part[Policies]):
    """`BlockingAdminClient.policies`."""

    all = waits(Policies.all)
    get = waits(Policies.get)
    put = waits(Policies.put)
    set_entry = waits(Policies.set_entry)
    set_entries = waits(Policies.set_entries)
    remove_entry = waits(Policies.remove_entry)
    explain = waits(Policies.explain)


class BlockingQuotas(Part[Quotas]):
    """`BlockingAdminClient.quotas`."""

    all = waits(Quotas.all)
    set = waits(Quotas.set)
    delete = waits(Quotas.delete)


class BlockingAudit(Part[Audit]):
    """`BlockingAdminClient.audit`."""

    search = waits(Audit.search)

    def follow(
        self,
        *,
        user: str | None = None,
        action: str | None = None,
        resource: str | None = None,
        decision: str | None = None,
        source: str | None = None,
        request_id: str | None = None,
        since_unix_ms: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """As `Audit.follow`: it waits for the next one."""
        wanted = Wanted(user, action, resource, decision, source, request_id, since_unix_ms)
        options = wanted._asdict()
        del options["until_unix_ms"]
        rows = cast(AsyncGenerator[dict[str, Any], None], self._client.follow(**options))
        try:
            while True:
                yield self._thread.call(rows.__anext__)
        finally:
            self._thread.call(rows.aclose)


class BlockingSecurityMode(Part[SecurityMode]):
    """`BlockingAdminClient.security`."""

    enable = waits(SecurityMode.enable)
    get = waits(SecurityMode.get)
    set = waits(SecurityMode.set)
    login = waits(SecurityMode.login)
    seal_keys = waits(SecurityMode.seal_keys)
    whoami = waits(SecurityMode.whoami)


class BlockingAdminClient(Blocking[AdminClient]):
    """`AdminClient` for scripts: all that it can do, in the same parts."""

    def __init__(self, bootstrap: Bootstrap, *, timeout_ms: int = 10_000) -> None:
        """Connects; PeerError when no bootstrap address answers."""
        super().__init__("admin", lambda: AdminClient(bootstrap, timeout_ms=timeout_ms))
        thread, client = self._thread, self._client
        self.messages = BlockingMessages(thread, client.messages)
        self.topics = BlockingTopics(thread, client.topics)
        self.consumer_groups = BlockingConsumerGroups(thread, client.consumer_groups)
        self.dead_letters = BlockingDeadLetters(thread, client.dead_letters)
        self.clients = BlockingClients(thread, client.clients)
        self.broker_groups = BlockingBrokerGroups(thread, client.broker_groups)
        self.pins = BlockingPins(thread, client.pins)
        self.controllers = BlockingControllers(thread, client.controllers)
        self.users = BlockingUsers(thread, client.users)
        self.policies = BlockingPolicies(thread, client.policies)
        self.quotas = BlockingQuotas(thread, client.quotas)
        self.audit = BlockingAudit(thread, client.audit)
        self.security = BlockingSecurityMode(thread, client.security)

    view = waits(AdminClient.view)
    cluster_status = waits(AdminClient.cluster_status)

    # -- former names, for one version ------------------------------------------------------------

    create_topic = waits(AdminClient.create_topic)
    alter_topic = waits(AdminClient.alter_topic)
    delete_topic = waits(AdminClient.delete_topic)
    topic = waits(AdminClient.topic)
    remap_queue = waits(AdminClient.remap_queue)
    wait_remapped = waits(AdminClient.wait_remapped)
    create_consumer_group = waits(AdminClient.create_consumer_group)
    alter_consumer_group = waits(AdminClient.alter_consumer_group)
    delete_consumer_group = waits(AdminClient.delete_consumer_group)
    consumer_group = waits(AdminClient.consumer_group)
    consumer_lag = waits(AdminClient.consumer_lag)
    consumer_members = waits(AdminClient.consumer_members)
    reset_offsets = waits(AdminClient.reset_offsets)
    clone_offsets = waits(AdminClient.clone_offsets)
    dead_letter = waits(AdminClient.dead_letter)
    resend_dead_letters = waits(AdminClient.resend_dead_letters)
    purge_dead_letters = waits(AdminClient.purge_dead_letters)
    message = waits(AdminClient.message)
    track = waits(AdminClient.track)
    group = waits(AdminClient.group)
    set_group_settings = waits(AdminClient.set_group_settings)
    set_write_permission = waits(AdminClient.set_write_permission)
    elect = waits(AdminClient.elect)
    transfer = waits(AdminClient.transfer)
    history = waits(AdminClient.history)
    epochs = waits(AdminClient.epochs)
    clean_replica = waits(AdminClient.clean_replica)
    clean_group = waits(AdminClient.clean_group)
    presented_stores = waits(AdminClient.presented_stores)
    recover = waits(AdminClient.recover)
    forget_store = waits(AdminClient.forget_store)
    add_pin = waits(AdminClient.add_pin)
    remove_pin = waits(AdminClient.remove_pin)
    members = waits(AdminClient.members)
    transfer_leadership = waits(AdminClient.transfer_leadership)
    add_controller = waits(AdminClient.add_controller)
    remove_controller = waits(AdminClient.remove_controller)

    def find_messages(self, topic: str, **asked: Any) -> list[dict[str, Any]]:
        """The former name of `messages.find`."""
        return self.messages.find(topic, **asked)
