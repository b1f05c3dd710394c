"""The blocking twin of the admin client."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

from paceline.admin.client import AdminClient
from paceline.blocking.twin import Blocking, waits


class BlockingAdminClient(Blocking[AdminClient]):
    """`AdminClient` for scripts: all that it can do."""

    def __init__(self, bootstrap: str | Sequence[str], *, timeout_ms: int = 10_000) -> None:
        """Connects; PeerError when no bootstrap address answers."""
        super().__init__("admin", lambda: AdminClient(bootstrap, timeout_ms=timeout_ms))

    create_topic = waits(AdminClient.create_topic)
    alter_topic = waits(AdminClient.alter_topic)
    delete_topic = waits(AdminClient.delete_topic)
    topics = waits(AdminClient.topics)
    topic = waits(AdminClient.topic)
    remap_queue = waits(AdminClient.remap_queue)
    wait_remapped = waits(AdminClient.wait_remapped)

    create_consumer_group = waits(AdminClient.create_consumer_group)
    alter_consumer_group = waits(AdminClient.alter_consumer_group)
    delete_consumer_group = waits(AdminClient.delete_consumer_group)
    consumer_groups = waits(AdminClient.consumer_groups)
    consumer_group = waits(AdminClient.consumer_group)
    consumer_lag = waits(AdminClient.consumer_lag)
    consumer_members = waits(AdminClient.consumer_members)
    reset_offsets = waits(AdminClient.reset_offsets)
    clone_offsets = waits(AdminClient.clone_offsets)
    clients = waits(AdminClient.clients)

    dead_letters = waits(AdminClient.dead_letters)
    dead_letter = waits(AdminClient.dead_letter)
    resend_dead_letters = waits(AdminClient.resend_dead_letters)
    purge_dead_letters = waits(AdminClient.purge_dead_letters)
    message = waits(AdminClient.message)
    track = waits(AdminClient.track)

    view = waits(AdminClient.view)
    cluster_status = waits(AdminClient.cluster_status)
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
    pins = waits(AdminClient.pins)
    add_pin = waits(AdminClient.add_pin)
    remove_pin = waits(AdminClient.remove_pin)

    controllers = waits(AdminClient.controllers)
    members = waits(AdminClient.members)
    transfer_leadership = waits(AdminClient.transfer_leadership)
    add_controller = waits(AdminClient.add_controller)
    remove_controller = waits(AdminClient.remove_controller)

    def find_messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        unique_key: str | None = None,
        begin_unix_ms: int | None = None,
        end_unix_ms: int | None = None,
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """As `AdminClient.find_messages`, the first `limit` of them."""

        async def find() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = []
            found = self._client.find_messages(
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
