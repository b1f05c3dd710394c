"""Pure: the time line, one picture: rates, latencies, nodes, sets, faults over one axis of time.

Each panel draws itself from `top` on and says how high it is; `timeline` stacks them. Colours are
classes, defined once in `look`, so that a dark page needs no other picture.
"""

from collections.abc import Iterable, Sequence

from paceline_chaos.report.lanes import Mark, Story
from paceline_chaos.report.plot_faults import FAULTS_MAX, draw_faults, draw_phases, draw_violations
from paceline_chaos.report.plot_nodes import draw_controllers, draw_group
from paceline_chaos.report.plot_rates import draw_acknowledgements, draw_latencies, draw_reads
from paceline_chaos.report.rates import Rates
from paceline_chaos.report.scale import LEFT, PLOT, WIDTH, TimeScale, seconds
from paceline_chaos.report.sheet import Sheet
from paceline_chaos.report.svg import element, line, rect, text


def timeline(rates: Rates, story: Story, violations: Sequence[Mark], length_ms: float) -> str:
    """The whole picture."""
    sheet = Sheet(TimeScale(length_ms), top=32.0)
    draw_violations(sheet, violations)
    draw_phases(sheet, story.phases)
    draw_faults(sheet, story.faults)
    draw_acknowledgements(sheet, rates)
    draw_latencies(sheet, rates)
    draw_reads(sheet, rates)
    draw_controllers(sheet, story)
    for group in story.groups():
        draw_group(sheet, story, group)
    return _assembled(sheet, story)


def _assembled(sheet: Sheet, story: Story) -> str:
    height = sheet.top + 26
    shading = [
        rect(
            sheet.time.x(fault.start),
            30.0,
            sheet.time.x(fault.end) - sheet.time.x(fault.start),
            height - 56,
            class_="shade",
        )
        for fault in story.faults[:FAULTS_MAX]
    ]
    ticks = "".join(_ticks(sheet.time, height))
    definitions = element(
        "defs",
        element("clipPath", rect(0.0, 0.0, PLOT, height), id="plot"),
        element(
            "pattern",
            element("path", d="M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", class_="hatch"),
            id="hatch",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
        ),
    )
    inside = element(
        "g",
        element("g", *shading, *sheet.shapes, class_="t"),
        element("g", *sheet.texts),
        line(0, 24, 0, height - 24, id="cross", visibility="hidden"),
        clip_path="url(#plot)",
        transform=f"translate({LEFT},0)",
    )
    ground = rect(LEFT, 24.0, PLOT, height - 48, id="ground")
    return element(
        "svg",
        definitions,
        ground,
        *sheet.fixed,
        element("g", ticks, id="ticks", transform=f"translate({LEFT},0)"),
        inside,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        id="timeline",
        role="img",
        aria_label="time line",
        data_ms=sheet.time.length_ms,
        data_left=LEFT,
        data_plot=PLOT,
    )


def _ticks(time: TimeScale, height: float) -> Iterable[str]:
    for at in time.ticks():
        x = time.x(at)
        yield line(x, 24, x, height - 24, class_="grid")
        for y in (16, height - 8):
            yield text(seconds(at), x=x, y=y, class_="tick")
