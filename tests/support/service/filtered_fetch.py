"""What tests of filtered fetch share with others."""

from tests.support.askers import ANYBODY
from tests.support.http.door import a_batch
from tests.support.service.fakes import Bench
from tests.support.service.send import Answers


def send(bench: Bench, *tags: str | None, queue_id: int = 0) -> None:
    batch = a_batch(*[b"x"] * len(tags), tags=list(tags), queue_id=queue_id)
    bench.service.sender.send(batch, Answers(), 0)


async def a_filter(bench: Bench, expression: str, type_: str = "TAG") -> int:
    call = {"call": "filter", "type": type_, "expression": expression}
    number: int = (await bench.service.calls.call(call, asker=ANYBODY))["filter_id"]
    return number
