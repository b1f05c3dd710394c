"""All controllers lose power with something just acknowledged (INV-10)."""

from paceline.types import TopicName
from paceline_chaos.world.all_ack.questions import acknowledged, unseen
from paceline_chaos.world.jobs.around import Around
from paceline_chaos.world.run import Result
from paceline_chaos.world.script import Director, Steps

_TURNS = 3
_DARK_MS = 200


def dark(d: Director) -> Steps:
    """A topic is made; in the moment in which the operator knows it, no controller is left."""
    for turn in range(_TURNS):
        yield d.is_whole
        yield d.pass_ms(200)
        name = TopicName(f"promised-{turn}")

        async def make(around: Around, name: TopicName = name) -> None:
            await around.as_admin(lambda admin: admin.create_topic(name, queues=1))
            d.saw(name)

        d.stage.begin_tool(make)
        yield lambda name=name: d.notes.seen[name] > 0  # type: ignore[misc]
        d.begin("power", "controllers", for_ms=_DARK_MS)
        d.saw("dark")
        yield lambda: d.stage.leader() is None
        yield lambda: d.stage.leader() is not None
        d.expect(d.topic(name) is not None, "what the controllers had promised is gone (INV-10)")
    yield d.is_whole
    d.mark("after")
    yield d.pass_ms(500)


def was_kept(result: Result) -> list[str]:
    return [
        *unseen(result, dark=_TURNS),
        *([] if acknowledged(result, since="after") else ["nothing was acknowledged afterwards"]),
    ]
