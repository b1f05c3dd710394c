"""The wall clock of one named broker is wrong: as master, and as the next one (R29).

A master whose clock the controllers contradict delivers nothing that waits, and counts delays by
their time. So nothing comes early, whoever leads, also when its clock was wrong from its start on.
S25 does not judge deliveries once a broker's clock was changed, as it knows neither whose it was
nor by how much; here both are known, and the script judges.
"""

from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.messages.delays import first_seen_early
from paceline_chaos.cluster_sim.all_ack.questions import fell_silent, unequal_logs, unseen
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.script import Director, Steps

STEP_MS = 3_600_000
_WRONG_MS = 2_500
_DOWN_MS = 900


def wrong_clock(d: Director) -> Steps:
    """The master's clock runs an hour ahead for a while; then a broker that starts with a clock an
    hour behind is the only one that can lead."""
    yield d.is_whole
    yield d.pass_ms(500)
    first, second, third = d.master, *d.replicas
    d.begin("clock_step", first.name, for_ms=1, offset_ms=STEP_MS)
    d.saw("wrong clocks")
    yield d.pass_ms(_WRONG_MS)
    d.begin("clock_step", first.name, for_ms=1, offset_ms=-STEP_MS)
    yield d.pass_ms(500)
    d.begin("clock_step", second.name, for_ms=1, offset_ms=-STEP_MS)
    d.kill(second, for_ms=300)
    yield lambda: second.broker is None
    yield d.is_whole
    d.kill(first, third, for_ms=_DOWN_MS)
    yield lambda: d.is_open() and d.master is second
    d.saw("wrong clocks")
    yield d.pass_ms(_WRONG_MS)
    yield from d.fail_over(for_ms=300)
    d.mark("after")
    yield d.pass_ms(_WRONG_MS)


def nothing_was_early(result: Result) -> list[str]:
    evidence = Evidence(result.history)
    return [
        *unseen(result, wrong_clocks=2),
        *first_seen_early(evidence),
        *fell_silent(result, since="after"),
        *unequal_logs(result),
    ]
