"""Pure: what clients saw: acknowledgements, latencies, messages read."""

from collections.abc import Iterable, Sequence
from math import log10

from paceline_chaos.report.rates import Rates
from paceline_chaos.report.scale import PLOT, amount, decades, duration, round_up
from paceline_chaos.report.sheet import GAP, Sheet
from paceline_chaos.report.svg import bars, dots, label, path, rect


def draw_acknowledgements(sheet: Sheet, rates: Rates) -> None:
    """Acknowledged, refused and unknown sends, one bar for each step."""
    height, top = 120.0, sheet.top + 8
    totals = [
        sum(counts) for counts in zip(rates.acknowledged, rates.failed, rates.unknown, strict=True)
    ]
    most = round_up(max(totals, default=1))
    bottom = top + height
    for share in (0.0, 0.5, 1.0):
        sheet.level(amount(most * share), y=bottom - height * share)
    sheet.title("acknowledged", y=top + 8)
    sheet.title(f"per {rates.step_ms} ms", y=top + 22, class_="unit")
    width = rates.step_ms / sheet.time.length_ms * PLOT
    base = [bottom] * len(totals)
    for counts, class_ in (
        (rates.acknowledged, "ok"),
        (rates.failed, "fail"),
        (rates.unknown, "unknown"),
    ):
        heights = [count / most * height for count in counts]
        sheet.shapes.append(bars(heights, width=width, base=base, class_=class_))
        base = [foot - high for foot, high in zip(base, heights, strict=True)]
    _mark_gap(sheet, rates, bottom - height * 0.72)
    sheet.top = bottom + 4 * GAP


def _mark_gap(sheet: Sheet, rates: Rates, y: float) -> None:
    """The longest silence, if one can see it."""
    if rates.gap is None or rates.gap[1] < 2 * rates.step_ms:
        return
    start, length = rates.gap
    x, end = sheet.time.x(start), sheet.time.x(start + length)
    sheet.shapes.append(rect(x, y - 3, end - x, 3.0, class_="silence"))
    content = f"{duration(length)} without"
    sheet.texts.append(label(content, x=x, y=y - 7, room=None, class_="silence"))


def draw_latencies(sheet: Sheet, rates: Rates) -> None:
    """Of sends that were acknowledged, by the step in which they were."""
    seen = [value for value in (*rates.p50_ms, *rates.max_ms) if value]
    if not seen:
        return
    height, top = 96.0, sheet.top + 6
    levels = decades(min(seen), max(seen))
    bottom = top + height
    low, high = levels[0], levels[-1]

    def y(value: float) -> float:
        share = _log_share(value, low, high)
        return bottom - height * share

    for value in levels:
        sheet.level(f"{duration(value)}".replace(".00", ""), y=y(value))
    sheet.title("send latency", y=top + 8)
    sheet.title("p50, p99, max", y=top + 22, class_="unit")
    half = rates.step_ms / 2
    for values, class_ in ((rates.max_ms, "max"), (rates.p99_ms, "p99"), (rates.p50_ms, "p50")):
        for run in _runs(values):
            points = [
                (sheet.time.x(index * rates.step_ms + half), y(value)) for index, value in run
            ]
            if class_ == "max" or len(points) == 1:
                sheet.shapes.append(dots(points, class_=f"dots {class_}"))
            else:
                sheet.shapes.append(path(points, class_=class_))
    sheet.top = bottom + 4 * GAP


def _log_share(value: float, low: float, high: float) -> float:
    return (log10(max(value, low)) - log10(low)) / (log10(high) - log10(low))


def _runs(values: Sequence[float | None]) -> Iterable[list[tuple[int, float]]]:
    """Stretches without a None."""
    run: list[tuple[int, float]] = []
    for index, value in enumerate(values):
        if value is not None:
            run.append((index, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def draw_reads(sheet: Sheet, rates: Rates) -> None:
    """Messages that consumers were given."""
    if not any(rates.reads):
        return
    height, top = 40.0, sheet.top + 4
    most = round_up(max(rates.reads))
    bottom = top + height
    for share in (0.0, 1.0):
        sheet.level(amount(most * share), y=bottom - height * share)
    sheet.title("read", y=top + 8)
    sheet.title("messages", y=top + 22, class_="unit")
    width = rates.step_ms / sheet.time.length_ms * PLOT
    heights = [count / most * height for count in rates.reads]
    base = [bottom] * len(heights)
    sheet.shapes.append(bars(heights, width=width, base=base, class_="read"))
    sheet.top = bottom + 4 * GAP
