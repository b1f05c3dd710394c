"""`paceline recall`: take a delayed message back before it is due."""

import click

from paceline.cli.needs import Command
from paceline.cli.options import Connect, cluster_options, find_topic, open_cluster, run_async
from paceline.cli.output import echo_json


@click.command("recall", cls=Command)
@click.argument("topic")
@click.argument("handle")
@cluster_options
def command(topic: str, handle: str, connect: Connect, as_json: bool) -> None:
    """Take a delayed message back before it is due.

    HANDLE is what `paceline send --delay` and `paceline delay list` show.
    """
    message_id = run_async(_recall(connect, topic, handle))
    if as_json:
        echo_json({"topic": topic, "message_id": message_id})
    else:
        click.echo(f"taken back: {message_id} of {topic} will not be delivered")


async def _recall(connect: Connect, topic: str, handle: str) -> str:
    from paceline.producer.producer import Producer

    async with open_cluster(connect) as cluster:
        await find_topic(cluster, topic)
        async with Producer(cluster) as producer:
            return await producer.recall(topic, handle)
