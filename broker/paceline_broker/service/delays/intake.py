"""What a master checks and settles of a DELAY batch before it stores it: limits, and due times.

A level or a delay becomes a time by the master's clock (fire_clock.py), so the record alone says
when it is due (R29). Limits refuse the whole batch, as nothing of it is stored then.
"""

from collections import Counter
from collections.abc import Sequence

from paceline.errors import BadRequestError, OverloadedError
from paceline.platform.ports import Buffer
from paceline.records.decode import BatchView
from paceline.records.dues import resolve_dues, with_dues
from paceline.records.header import BatchHeader
from paceline_broker.projections.timers import BUCKET_MS, Timers
from paceline_broker.service.settings import ServiceSettings

SKEW_MS = 60_000
"""A time that is just not too far ahead by the client's clock is not refused by the broker's."""
RETRY_AFTER_MS = 1000


def take_delayed(
    batch: Buffer,
    header: BatchHeader,
    timers: Timers,
    settings: ServiceSettings,
    *,
    now_unix_ms: int,
) -> tuple[Buffer, BatchHeader]:
    """The batch as it is stored. Raises BadRequestError, TooLargeError, OverloadedError."""
    written = BatchView(batch).due()
    dues = resolve_dues(written, levels_ms=settings.message_delay_level_ms, now_unix_ms=now_unix_ms)
    longest_s = settings.timer_max_delay_sec
    if max(dues) > now_unix_ms + longest_s * 1000 + SKEW_MS:
        raise BadRequestError(
            f"a delay of {(max(dues) - now_unix_ms) // 1000} s is over timer_max_delay_sec, "
            f"{longest_s} s; nothing was stored",
            field="delay",
        )
    _check_room(dues, timers, settings)
    return (batch, header) if dues == written else with_dues(batch, dues)


def _check_room(dues: Sequence[int], timers: Timers, settings: ServiceSettings) -> None:
    if len(timers) + len(dues) > settings.timer_pending_max:
        raise OverloadedError(
            f"{len(timers)} messages wait for their time, timer_pending_max is "
            f"{settings.timer_pending_max}; nothing was stored",
            retry_after_ms=RETRY_AFTER_MS,
        )
    limit = settings.timer_congest_num_each_slot
    if len(timers) + len(dues) <= limit:
        return
    for second, count in Counter(due // BUCKET_MS for due in dues).items():
        waiting = timers.count_in_second(second * BUCKET_MS)
        if waiting + count > limit:
            raise OverloadedError(
                f"{waiting} messages are due in the same second, timer_congest_num_each_slot is "
                f"{limit}; nothing was stored",
                retry_after_ms=RETRY_AFTER_MS,
            )
