"""Pure: the rows on top: what was done to the cluster, phases of the run, violations."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_chaos.report.lanes import FaultSpan, Mark
from paceline_chaos.report.scale import TimeScale
from paceline_chaos.report.sheet import GAP, ROW, Sheet, fault_label, fault_tip, with_room
from paceline_chaos.report.svg import GLYPH_PX, label, line, rect

FAULT_ROW = 15.0
BAR_PX_MIN = 2.5
FAULT_ROWS_MAX = 8
FAULTS_MAX = 600
"""Shapes, not knowledge: the table below the plot has more."""


def draw_violations(sheet: Sheet, marks: Sequence[Mark]) -> None:
    """Where each violation showed."""
    if not marks:
        return
    y = sheet.top
    sheet.title("violations", y=y + 13, class_="title bad")
    for mark in marks:
        x = sheet.time.x(mark.at)
        tip = f"{mark.label}: {mark.detail}"
        sheet.shapes.append(line(x, y, x, y + ROW, class_="violation", data_tip=tip))
    for mark, room in with_room(sheet, marks):
        x = sheet.time.x(mark.at)
        sheet.texts.append(label(mark.label, x=x, dx=5, y=y + 14, room=room, class_="bad"))
    sheet.top += ROW + GAP


def draw_phases(sheet: Sheet, phases: Sequence[Mark]) -> None:
    """Load, healing, the end."""
    if not phases:
        return
    y = sheet.top
    sheet.title("phases", y=y + 13)
    for phase, room in with_room(sheet, phases):
        x = sheet.time.x(phase.at)
        tip = f"phase {phase.label} {phase.detail}".strip()
        sheet.shapes.append(line(x, y, x, y + ROW, class_="phase", data_tip=tip))
        sheet.texts.append(label(phase.label, x=x, dx=5, y=y + 14, room=room, class_="phase"))
    sheet.top += ROW + GAP


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a fault is drawn."""

    fault: FaultSpan
    row: int
    x: float
    width: float
    is_inside: bool
    """The label stands on the bar, not beside it."""
    has_label: bool
    """False where rows have run out: only a zoom makes room for it."""


def packed(faults: Sequence[FaultSpan], time: TimeScale) -> list[Placed]:
    """Rows in which bars and labels do not overlap, as long as there are rows."""
    ends: list[float] = []
    placed: list[Placed] = []
    for fault in sorted(faults, key=lambda fault: fault.start):
        x = time.x(fault.start)
        width = max(BAR_PX_MIN, time.x(fault.end) - x)
        needed = len(fault_label(fault)) * GLYPH_PX + 6
        is_inside = width >= needed
        end = x + (width if is_inside else width + needed) + 4
        row = next((row for row, taken in enumerate(ends) if taken <= x), len(ends))
        has_label = row < FAULT_ROWS_MAX
        if not has_label:  # all are taken: over another bar, without words
            row = min(range(len(ends)), key=ends.__getitem__)
            end = max(ends[row], x + width)
        if row == len(ends):
            ends.append(0.0)
        ends[row] = end
        placed.append(Placed(fault, row, x, width, is_inside, has_label))
    return placed


def draw_faults(sheet: Sheet, faults: Sequence[FaultSpan]) -> None:
    """Bars with labels, in as few rows as hold them."""
    if not faults:
        return
    placed = packed(faults[:FAULTS_MAX], sheet.time)
    sheet.title("faults", y=sheet.top + 12)
    for one in placed:
        y = sheet.top + one.row * (FAULT_ROW + 2)
        tip = fault_tip(one.fault)
        sheet.shapes.append(rect(one.x, y, one.width, FAULT_ROW, class_="fault", data_tip=tip))
        content, y = fault_label(one.fault), y + 11.5
        inside = label(content, x=one.x, dx=4, y=y, room=one.width, class_="on")
        sheet.texts.append(inside)
        if one.has_label and not one.is_inside:
            beside = label(
                content,
                x=one.x + one.width,
                dx=3,
                y=y,
                room=None,
                until=one.width,
                class_="beside",
            )
            sheet.texts.append(beside)
    rows = 1 + max(one.row for one in placed)
    sheet.top += rows * (FAULT_ROW + 2) + 2 * GAP
