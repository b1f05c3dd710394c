"""`paceline transaction list|show|commit|rollback`: half messages, looked at and ended by hand."""

from typing import TYPE_CHECKING, Any

import click

from paceline.cli.needs import Group
from paceline.cli.options import Connect, cluster_options, open_cluster, run_async
from paceline.cli.output import echo_json, echo_table, utc

if TYPE_CHECKING:
    from paceline.message import Message
    from paceline.producer.transaction import Transaction

CALL_TIMEOUT_MS = 10_000
LIMIT_DEFAULT = 100
_LIMIT_MAX = 1000


@click.group("transaction", cls=Group)
def command() -> None:
    """Show half messages; commit or roll them back."""


@command.command("list")
@click.option("--topic", help="Only of this topic.")
@click.option(
    "--limit",
    type=click.IntRange(1, _LIMIT_MAX),
    default=LIMIT_DEFAULT,
    show_default=True,
    help="The oldest so many of each broker group.",
)
@cluster_options
def list_open(topic: str | None, limit: int, connect: Connect, as_json: bool) -> None:
    """Show open half messages, the oldest first."""
    for group, found in sorted(run_async(_list(connect, topic, limit)).items()):
        if as_json:
            echo_json(
                {"group": group, "open": found["open"], "transactions": found["transactions"]}
            )
            continue
        click.echo(f"group {group}: {found['open']:,} open")
        if found["transactions"]:
            echo_table(
                ("TRANSACTION", "TOPIC", "QUEUE", "STORED (UTC)", "CHECKS"),
                [
                    (
                        row["transaction_id"],
                        row["topic"],
                        str(row["queue"]),
                        utc(row["store_unix_ms"]),
                        str(row["checks"]),
                    )
                    for row in found["transactions"]
                ],
            )


@command.command("show")
@click.argument("transaction_id")
@cluster_options
def show(transaction_id: str, connect: Connect, as_json: bool) -> None:
    """Show one transaction, open or ended."""
    found = run_async(_show(connect, transaction_id))
    if as_json:
        echo_json(found)
        return
    click.echo(
        f"{found['outcome']}: for topic {found['topic']}, queue {found['queue']}, stored"
        f" {utc(found['store_unix_ms'])} UTC, {found['checks']} checks"
    )


@command.command("commit")
@click.argument("transaction_id")
@cluster_options
def commit(transaction_id: str, connect: Connect, as_json: bool) -> None:
    """Make the message of a half visible."""
    _end(connect, transaction_id, is_commit=True, as_json=as_json)


@command.command("rollback")
@click.argument("transaction_id")
@cluster_options
def rollback(transaction_id: str, connect: Connect, as_json: bool) -> None:
    """Have nobody ever see the message of a half."""
    _end(connect, transaction_id, is_commit=False, as_json=as_json)


def _end(connect: Connect, transaction_id: str, *, is_commit: bool, as_json: bool) -> None:
    run_async(_run_end(connect, transaction_id, is_commit=is_commit))
    outcome = "COMMITTED" if is_commit else "ROLLED_BACK"
    if as_json:
        echo_json({"transaction_id": transaction_id, "outcome": outcome})
    else:
        click.echo(f"{transaction_id} is {outcome.lower().replace('_', ' ')}")


async def _list(connect: Connect, topic: str | None, limit: int) -> dict[str, dict[str, Any]]:
    """What the master of every broker group has open."""
    from paceline.net.group_links import GroupLinks
    from paceline.wire.calls.messages import Transactions

    async with open_cluster(connect) as cluster:
        assert cluster.view is not None
        links = GroupLinks(cluster)
        request = Transactions(limit=limit, topic=topic)
        try:
            return {
                str(group): (await links.call(group, request, timeout_ms=CALL_TIMEOUT_MS)).answer
                for group in cluster.view.groups
            }
        finally:
            await links.close()


async def _show(connect: Connect, transaction_id: str) -> dict[str, Any]:
    from paceline.net.group_links import GroupLinks
    from paceline.producer.transaction_ends import HANDLE_KIND
    from paceline.types import GroupName
    from paceline.wire.calls.messages import Transaction
    from paceline.wire.message_ids import parse_handle

    group = GroupName(parse_handle(HANDLE_KIND, transaction_id).group)
    async with open_cluster(connect) as cluster:
        links = GroupLinks(cluster)
        try:
            request = Transaction(id=transaction_id)
            return (await links.call(group, request, timeout_ms=CALL_TIMEOUT_MS)).answer
        finally:
            await links.close()


async def _run_end(connect: Connect, transaction_id: str, *, is_commit: bool) -> None:
    from paceline.net.group_links import GroupLinks
    from paceline.producer.transaction_ends import TransactionEndSender

    async with open_cluster(connect) as cluster:
        links = GroupLinks(cluster)
        ends = TransactionEndSender(links, timeout_ms=CALL_TIMEOUT_MS, attempt_ms=CALL_TIMEOUT_MS)
        try:
            await ends.end(transaction_id, is_commit=is_commit)
        finally:
            await ends.close()
            await links.close()


async def begin_and_end(
    connect: Connect, message: "Message", *, group: str, end: str
) -> "Transaction":
    """For `paceline send --transaction`: a half, ended as `end` says: commit, rollback or none."""
    from paceline.cli.options import find_or_make_topic
    from paceline.producer.transaction import TransactionProducer

    async with open_cluster(connect) as cluster:
        await find_or_make_topic(cluster, message.topic)
        async with TransactionProducer(cluster, group=group) as producer:
            transaction = await producer.begin(message)
            if end == "commit":
                await transaction.commit()
            elif end == "rollback":
                await transaction.rollback()
            return transaction


def show_sent(transaction: "Transaction", end: str, *, as_json: bool) -> None:
    """What became of it."""
    outcome = {"commit": "COMMITTED", "rollback": "ROLLED_BACK", "none": "OPEN"}[end]
    if as_json:
        echo_json(
            {
                "transaction_id": transaction.transaction_id,
                "unique_key": transaction.half.unique_key,
                "topic": transaction.half.topic,
                "group": transaction.taken.group,
                "queue": transaction.taken.queue_id,
                "outcome": outcome,
            }
        )
    else:
        words = outcome.lower().replace("_", " ")
        click.echo(f"transaction {transaction.transaction_id}: {words}")
