"""Pure: the paper that panels draw on: shapes that stretch with time, texts that move, the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline_chaos.report.lanes import FaultSpan, Mark
from paceline_chaos.report.scale import LEFT, PLOT, TITLE, TimeScale, duration, seconds
from paceline_chaos.report.svg import line, text

ROW = 20.0
GAP = 4.0
HUES = 6
LABEL_MAX = 36
"""Characters of a fault's label; whom a split divides can be long."""


@dataclass(slots=True)
class Sheet:
    """What has been drawn: shapes that stretch with time, texts that move, things that stay."""

    time: TimeScale
    shapes: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    top: float = 0.0

    def title(self, content: str, *, y: float, class_: str = "title") -> None:
        """At the left edge."""
        self.fixed.append(text(content, x=TITLE, y=y, class_=class_))

    def level(self, content: str, *, y: float) -> None:
        """A horizontal line of a scale with its number."""
        self.fixed.append(line(LEFT, y, LEFT + PLOT, y, class_="grid"))
        self.fixed.append(text(content, x=LEFT - 10, y=y + 3.5, class_="level"))


def with_room(sheet: Sheet, marks: Sequence[Mark]) -> Iterable[tuple[Mark, float]]:
    """Each mark with the pixels up to the next one."""
    places = [sheet.time.x(mark.at) for mark in marks]
    for index, mark in enumerate(marks):
        following = places[index + 1] if index + 1 < len(places) else PLOT
        yield mark, following - places[index] - 6


def fault_label(fault: FaultSpan) -> str:
    """What and whom, in few words."""
    whole = f"{fault.kind} {fault.target}"
    return whole if len(whole) <= LABEL_MAX else whole[: LABEL_MAX - 1] + "\N{HORIZONTAL ELLIPSIS}"


def fault_tip(fault: FaultSpan) -> str:
    """All that is known of it."""
    lasted = "" if fault.is_blow else f" for {duration(fault.end - fault.start)}"
    lasted += "" if fault.has_end or fault.is_blow else " (to the end)"
    detail = f", {fault.detail}" if fault.detail else ""
    return f"{fault.kind} {fault.target} at {seconds(round(fault.start))}{lasted}{detail}"
