"""Pure: what nodes were: a lane for each, elections and sync state sets of each group, confirm."""

import re
from collections.abc import Iterable, Sequence

from paceline_chaos.report.lanes import (
    Band,
    Election,
    FaultSpan,
    Lane,
    Mark,
    Story,
    short_name,
)
from paceline_chaos.report.scale import LEFT, PLOT, TITLE, amount, duration, round_up, seconds
from paceline_chaos.report.sheet import GAP, HUES, ROW, Sheet, fault_tip, with_room
from paceline_chaos.report.svg import GLYPH_PX, element, label, line, path, rect, text

NAME = re.compile(r"[\w.-]+")
DIVISIONS = frozenset({"split", "bridge"})
"""Faults that name everybody: they are nobody's in particular."""


def draw_controllers(sheet: Sheet, story: Story) -> None:
    """A lane for each: its role if it was probed, and what it applied."""
    lanes = [lane for lane in story.lanes if not lane.group]
    if not lanes:
        return
    for lane in lanes:
        y = sheet.top
        sheet.title(lane.node, y=y + 14, class_="node")
        sheet.fixed.append(rect(LEFT, y, PLOT, ROW, class_="lane"))
        _bands(sheet, lane.bands, y)
        _tick_marks(sheet, lane, y)
        _troubles(sheet, story.faults, lane.node, y)
        sheet.top += ROW + GAP
    sheet.top += 2 * GAP


def _tick_marks(sheet: Sheet, lane: Lane, y: float) -> None:
    """What it applied, at most one mark a pixel."""
    places = sorted({round(sheet.time.x(at)) for at in lane.ticks})
    steps = "".join(f"M{x},{y + 6:g}v8" for x in places)
    if steps:
        sheet.shapes.append(element("path", d=steps, class_="applied"))


def draw_group(sheet: Sheet, story: Story, group: str) -> None:
    """Elections, a lane for each broker, the sync state set, confirm."""
    sheet.fixed.append(line(8, sheet.top - GAP, LEFT + PLOT, sheet.top - GAP, class_="divider"))
    elections = [election for election in story.elections if election.group == group]
    began = sheet.top
    _elected(sheet, elections)
    lanes = [lane for lane in story.lanes if lane.group == group]
    for lane in lanes:
        y = sheet.top
        sheet.title(lane.node, y=y + 14, class_="node")
        sheet.fixed.append(rect(LEFT, y, PLOT, ROW, class_="lane"))
        _bands(sheet, lane.bands, y)
        for start, end in lane.member:
            x = sheet.time.x(start)
            member = rect(x, y + ROW - 3, sheet.time.x(end) - x, 3.0, class_="member")
            sheet.shapes.append(member)
        _troubles(sheet, story.faults, lane.node, y)
        sheet.top += ROW + GAP
    for election in elections:
        x = sheet.time.x(election.at)
        sheet.shapes.append(line(x, began + ROW - 4, x, sheet.top - GAP, class_="election"))
    _set_row(sheet, story.sets.get(group, ()))
    _confirms(sheet, lanes)


def _elected(sheet: Sheet, elections: Sequence[Election]) -> None:
    y = sheet.top
    sheet.title("elections", y=y + 14)
    marks = [
        Mark(
            at=one.at,
            label=f"{one.epoch} \N{RIGHTWARDS ARROW} {one.master}",
            detail=f"epoch {one.epoch} of {one.group}: {one.master} at {seconds(round(one.at))}"
            f", set {one.members}, {one.reason}",
        )
        for one in elections
    ]
    for mark, room in with_room(sheet, marks):
        x = sheet.time.x(mark.at)
        sheet.shapes.append(line(x, y + 4, x, y + ROW - 2, class_="elected", data_tip=mark.detail))
        sheet.texts.append(label(mark.label, x=x, dx=6, y=y + 14, room=room, class_="strong"))
    sheet.top += ROW + GAP


def _bands(sheet: Sheet, bands: Sequence[Band], y: float) -> None:
    for band in bands:
        x, end = sheet.time.x(band.start), sheet.time.x(band.end)
        leads = band.role in ("master", "leader")
        known = leads or band.role in ("replica", "follower", "learner")
        hue = f"e{band.epoch % HUES}" if known else "e-none"
        class_ = f"band {hue} {'leads' if leads else 'follows'}"
        opened = "" if band.is_open or not leads else ", not open yet"
        tip = (
            f"{band.role} in epoch {band.epoch}{opened}, start {band.incarnation}, "
            f"{duration(band.end - band.start)}"
        )
        sheet.shapes.append(rect(x, y, end - x, ROW, class_=class_, data_tip=tip))
        if leads and not band.is_open:
            sheet.shapes.append(rect(x, y, end - x, ROW, class_="closed"))
        content = f"{band.role} {band.epoch}" if leads else str(band.epoch)
        class_ = "on" if leads else "faint"
        room = end - x - 2
        sheet.texts.append(label(content, x=x, dx=5, y=y + 13.5, room=room, class_=class_))


def _troubles(sheet: Sheet, faults: Iterable[FaultSpan], node: str, y: float) -> None:
    """What was done to this very node."""
    for fault in faults:
        hit = () if fault.kind in DIVISIONS else NAME.findall(fault.target)
        if node not in hit and fault.target != "all":
            continue
        x, end = sheet.time.x(fault.start), sheet.time.x(fault.end)
        shape = rect(x, y, max(2.0, end - x), ROW, class_="trouble", data_tip=fault_tip(fault))
        sheet.shapes.append(shape)


def _set_row(sheet: Sheet, bands: Sequence[Band]) -> None:
    y = sheet.top
    sheet.title("in sync", y=y + 13)
    sizes = [len(band.members) for band in bands]
    most = max(sizes, default=1)
    for band, size in zip(bands, sizes, strict=True):
        x, end = sheet.time.x(band.start), sheet.time.x(band.end)
        class_ = "set full" if size == most else "set short"
        tip = f"set epoch {band.epoch}: {band.label}, {duration(band.end - band.start)}"
        sheet.shapes.append(rect(x, y, end - x - 0.6, 16.0, class_=class_, data_tip=tip))
        room = end - x - 2
        sheet.texts.append(label(band.label, x=x, dx=4, y=y + 12, room=room, class_="set"))
    sheet.top += ROW + GAP


def _confirms(sheet: Sheet, lanes: Sequence[Lane]) -> None:
    most = max((value for lane in lanes for _, value in lane.confirm), default=0.0)
    if most <= 0:
        sheet.top += 2 * GAP
        return
    height, top = 72.0, sheet.top + 4
    bottom = top + height
    most = round_up(most)
    for share in (0.0, 1.0):
        sheet.level(amount(most * share), y=bottom - height * share)
    sheet.title("confirm", y=top + 8)
    sheet.title("bytes in the log", y=top + 22, class_="unit")
    x = TITLE
    for index, lane in enumerate(lanes):
        points = [(sheet.time.x(at), bottom - value / most * height) for at, value in lane.confirm]
        replica = lane.replica if lane.replica is not None else index + 1
        class_ = f"confirm r{replica % HUES}"
        sheet.shapes.append(path(points, class_=class_))
        name = short_name(lane.node, lane.group)
        key = text(name, x=x, y=top + 36, class_=f"key r{replica % HUES}")
        sheet.fixed.append(key)
        x += (len(name) + 1) * GLYPH_PX
    sheet.top = bottom + 5 * GAP
