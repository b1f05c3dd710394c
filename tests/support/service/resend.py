"""What tests of resend share with others."""

from typing import Any

from tests.support.service.fakes import Bench
from tests.support.service.send_back import a_row, send, send_back


async def resend(bench: Bench, *offsets: int, **more: Any) -> list[dict[str, Any]]:
    rows = [{"queue": 0, "offset": offset} for offset in offsets]
    answer = await bench.call("resend", group="g", messages=rows, **more)
    found: list[dict[str, Any]] = answer["messages"]
    return found


async def a_dead_letter(bench: Bench) -> int:
    """A message with a key dies at once; the position of its first storing."""
    position = send(bench, producer_id=7, base_sequence=0)
    await send_back(bench, a_row(1, delay_level=-1))
    return position
