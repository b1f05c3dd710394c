"""`paceline group lag|members|reset|clone`: where consumer groups stand, who is in them.

What RocketMQ's consumerProgress, consumerConnection, resetOffsetByTime and cloneGroupOffset do.
"""

import re
from datetime import UTC, datetime
from typing import Any

import click

from paceline.cli.asking import ask
from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options
from paceline.cli.output import echo_json, echo_table, subscribed
from paceline.platform.runtime import SystemClock

Row = dict[str, Any]


def add_to(group: click.Group) -> None:
    """Make these sub-commands of `paceline group`."""
    for found in (lag, members, reset, clone):
        group.add_command(found)


@click.command("lag", cls=Command)
@click.argument("group")
@cluster_options
def lag(group: str, connect: Connect, as_json: bool) -> None:
    """Show how far behind GROUP is on each queue that it has committed, or that comes after it."""
    rows = ask(connect, lambda admin: admin.consumer_groups.lag(group))
    total = sum(row["lag"] for row in rows)
    if as_json:
        for row in rows:
            echo_json(row)
        return
    table = [
        (
            row["topic"] or f"({row['topic_id']}, deleted)",
            f"{row['group']}/{row['queue']}",
            "-" if row["offset"] is None else f"{row['offset']:,}",
            f"{row['end']:,}",
            f"{row['lag']:,}",
            _behind(row["behind_ms"]),
            f"{row['in_flight']:,}",
        )
        for row in rows
    ]
    if not rows:
        click.echo(f"consumer group {group} has committed nothing yet", err=True)
        return
    echo_table(("TOPIC", "QUEUE", "OFFSET", "END", "LAG", "BEHIND", "IN FLIGHT"), table)
    click.echo(f"{total:,} messages behind")


@click.command("members", cls=Command)
@click.argument("group")
@cluster_options
def members(group: str, connect: Connect, as_json: bool) -> None:
    """Show who consumes in GROUP now, what, and how."""
    found = ask(connect, lambda admin: admin.consumer_groups.members(group))
    if as_json:
        echo_json(found)
        return
    table = [
        (
            member["client_id"],
            member.get("message_model", "-"),
            member.get("mode", "-"),
            str(len(member["owned"])),
            subscribed(member),
        )
        for member in found["members"]
    ]
    if not table:
        click.echo(f"nobody consumes in group {group} now", err=True)
        return
    echo_table(("CLIENT", "MODEL", "MODE", "QUEUES", "TOPICS"), table)
    if len({member.get("mode") == "ordered" for member in found["members"]}) > 1:
        click.echo(
            f"some members of {group} consume in order and some do not: these hold up each other",
            err=True,
        )
    for topic in found["inconsistent_topics"]:
        click.echo(f"not all members subscribe to {topic} in the same way", err=True)


@click.command("reset", cls=Command)
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    "target",
    required=True,
    help='"first", "last", an offset, or a time like 2026-01-31T12:00 (UTC) or 90m ago: "-90m".',
)
@click.option("--back-only", is_flag=True, help="Leave out queues that would go forward.")
@cluster_options
def reset(
    group: str, topic: str, target: str, back_only: bool, connect: Connect, as_json: bool
) -> None:
    """Move GROUP on all queues of TOPIC, whether it consumes now or not."""
    where = parse_target(target, now_ms=SystemClock().unix_ms())
    rows = ask(
        connect,
        lambda admin: admin.consumer_groups.reset_offsets(
            group, topic, back_only=back_only, **where
        ),
    )
    _echo_moved(rows, group, as_json=as_json)


@click.command("clone", cls=Command)
@click.argument("group")
@click.argument("topic")
@click.option("--from", "source", required=True, help="The group whose offsets are taken.")
@cluster_options
def clone(group: str, topic: str, source: str, connect: Connect, as_json: bool) -> None:
    """Give GROUP the offsets that another group has on TOPIC."""
    rows = ask(
        connect, lambda admin: admin.consumer_groups.clone_offsets(group, topic, source=source)
    )
    _echo_moved(rows, group, as_json=as_json)


# -- inside ---------------------------------------------------------------------------------------

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_target(text: str, *, now_ms: int, option: str = "--to", takes_offset: bool = True) -> Row:
    """What `--to` says, as fields of a reset. UsageError."""
    if text in ("first", "last"):
        return {"to": text}
    if takes_offset and re.fullmatch(r"\d{1,18}", text):
        return {"offset": int(text)}
    ago = re.fullmatch(r"-(\d{1,9})([smhd])", text)
    if ago:
        return {"unix_ms": max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]])}
    known = '"first", "last", an offset, a time' if takes_offset else '"first", "last", a time'
    try:
        if text.isdecimal():
            raise ValueError(text)  # a number of so many digits may be a date to datetime
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"{option} {text!r} is neither {known} nor an age like -90m"
        raise click.UsageError(message) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return {"unix_ms": max(0, int(at.timestamp() * 1000))}


def _echo_moved(rows: list[Row], group: str, *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            echo_json(row)
        return
    table = [
        (
            f"{row['group']}/{row['queue']}",
            "-" if row["before"] is None else f"{row['before']:,}",
            f"{row['offset']:,}",
        )
        for row in rows
    ]
    echo_table(("QUEUE", "BEFORE", "NOW"), table)
    click.echo(f"group {group} moved on {len(rows)} queues")


def _behind(behind_ms: int) -> str:
    seconds = behind_ms / 1000
    return f"{seconds:,.1f} s" if seconds < 3600 else f"{seconds / 3600:,.1f} h"
