"""Pure: the page of a failover measurement: distribution, where the time went, the worst kills."""

from collections.abc import Sequence

from paceline_chaos.report.failover_figures import (
    MAX_MS_MAX,
    MEDIAN_MS_MAX,
    P99_MS_MAX,
    FailoverFigures,
    Stages,
    Stall,
)
from paceline_chaos.report.look import STYLE
from paceline_chaos.report.scale import duration, round_up
from paceline_chaos.report.svg import element, escaped, line, path, rect, text

WIDTH, LEFT, PLOT = 1240.0, 70.0, 1150.0
BINS = 60
WORST = 12
STAGES: Sequence[tuple[str, str, str]] = (
    ("elected_ms", "until the election is applied", "var(--e1)"),
    ("opened_ms", "until the new epoch is open", "var(--e2)"),
    ("first_ms", "until the first client is answered", "var(--e3)"),
    ("all_ms", "until all clients are", "var(--e4)"),
)


def failover_page(figures: FailoverFigures) -> str:
    """The whole document; needs nothing else."""
    gaps = sorted(sample.gap_ms for sample in figures.kept)
    parts = [
        "<h1>Failover: kill -9 of the master under load</h1>",
        f"<p class=sub>{escaped(_settings(figures))}</p>",
        _verdict(figures),
        _tiles(figures),
        "<h2>Longest time between two acknowledgements of a client, around each kill</h2>",
        "<div class=legend><span><i style='background:var(--ok)'></i>samples</span>"
        "<span><i style='background:var(--ink)'></i>share of samples up to here</span>"
        "<span>dashed: goals (median, p99, max)</span></div>",
        f"<div class=plot>{_distribution(gaps)}</div>" if gaps else "<p>No sample.</p>",
        "<h2>Where the time went, kill by kill, the longest first</h2>",
        _stage_legend(figures),
        f"<div class=plot>{_stages(figures.stages)}</div>",
        "<h2>The worst samples</h2>",
        _worst(figures),
        _stalls(figures.stalls),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Failover</title><style>{STYLE}.goal{{stroke:var(--fault);stroke-dasharray:5 4}}"
        ".cdf{fill:none;stroke:var(--ink);stroke-width:2}svg .goal-text{fill:var(--fault)}"
        f"</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _settings(figures: FailoverFigures) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in figures.settings.items())
    return f"{len(figures.stages)} kills; {settings.replace('_', ' ')}"


def _verdict(figures: FailoverFigures) -> str:
    class_, what = ("good", "Goals met") if figures.is_met else ("bad", "Goals not met")
    return (
        f"<div class='verdict {class_}'><b>{what}</b>: median at most {MEDIAN_MS_MAX} ms, "
        f"p99 at most {P99_MS_MAX} ms, none above {MAX_MS_MAX} ms.</div>"
    )


def _tiles(figures: FailoverFigures) -> str:
    gaps, back = figures.gaps, figures.return_gaps
    discarded = len(figures.samples) - gaps.count
    tiles = [
        (duration(gaps.median), "median"),
        (duration(gaps.p95), "p95"),
        (duration(gaps.p99), "p99"),
        (duration(gaps.max), "max"),
        (f"{gaps.count:,}", "samples"),
        (f"{discarded:,}", "discarded (harness stalled)"),
        (duration(figures.all_gaps.max), "max with the discarded"),
        (duration(back.p99), "p99 while the dead one returned"),
        (f"{figures.operations.get('ok', 0):,}", "acknowledged"),
        (f"{figures.operations.get('fail', 0):,}", "refused"),
        (f"{figures.operations.get('unknown', 0):,}", "outcome unknown"),
    ]
    shown = [f"<div class=tile><b>{value}</b><span>{name}</span></div>" for value, name in tiles]
    return f"<div class=tiles>{''.join(shown)}</div>"


def _distribution(gaps: Sequence[float]) -> str:
    """Histogram, and over it the share of samples at or below each value."""
    height, bottom = 230.0, 262.0
    most_ms = round_up(max(gaps[-1] * 1.05, 100.0))
    counts = [0] * BINS
    for gap in gaps:
        counts[min(BINS - 1, int(gap / most_ms * BINS))] += 1
    most = max(counts)
    shapes = []
    for index, count in enumerate(counts):
        high = count / most * height
        x, width = LEFT + PLOT * index / BINS, PLOT / BINS - 1
        if count:
            tip = f"{count} of {len(gaps)}: {index * most_ms / BINS:.0f} ms and more"
            bar = rect(x, bottom - high, width, high, class_="ok")
            shapes.append(element("g", element("title", tip), bar))
    steps = [(LEFT, bottom)]
    for index, gap in enumerate(gaps):
        x = LEFT + gap / most_ms * PLOT
        steps.append((x, bottom - index / len(gaps) * height))
        steps.append((x, bottom - (index + 1) / len(gaps) * height))
    shapes.append(path([*_thinned(steps), (LEFT + PLOT, bottom - height)], class_="cdf"))
    for goal in (MEDIAN_MS_MAX, P99_MS_MAX, MAX_MS_MAX):
        if goal <= most_ms:
            x = LEFT + goal / most_ms * PLOT
            shapes.append(line(x, bottom - height - 8, x, bottom, class_="goal"))
            shapes.append(text(f"{goal} ms", x=x + 4, y=bottom - height, class_="goal-text"))
    return _framed(shapes, most_ms, bottom=bottom, height=height)


def _thinned(steps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    every = max(1, len(steps) // 4000)
    return [*steps[:-1:every], steps[-1]]


def _framed(shapes: Sequence[str], most_ms: float, *, bottom: float, height: float) -> str:
    frame = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * height
        frame.append(line(LEFT, y, LEFT + PLOT, y, class_="grid"))
        frame.append(text(f"{share:.0%}", x=LEFT - 8, y=y + 4, class_="level"))
    for index in range(11):
        x = LEFT + PLOT * index / 10
        label = duration(most_ms * index / 10).replace(".00", "")
        frame.append(text(label, x=x, y=bottom + 18, class_="tick"))
    return element("svg", *frame, *shapes, viewBox=f"0 0 {WIDTH:g} {bottom + 28:g}")


def _stage_legend(figures: FailoverFigures) -> str:
    medians = figures.stage_medians()
    shown = "".join(
        f"<span><i style='background:{colour}'></i>{name} (median {duration(medians[key])})</span>"
        for key, name, colour in STAGES
    )
    return f"<div class=legend>{shown}</div>"


def _stages(stages: Sequence[Stages]) -> str:
    """A column for each kill, stacked from the kill upwards."""
    ordered = sorted(stages, key=lambda one: -(one.all_ms or one.first_ms or 0))
    most = round_up(max((one.all_ms or 0 for one in ordered), default=0) or 1)
    height, bottom = 200.0, 220.0
    shapes = []
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * height
        shapes.append(line(LEFT, y, LEFT + PLOT, y, class_="grid"))
        label = duration(most * share).replace(".00", "")
        shapes.append(text(label, x=LEFT - 8, y=y + 4, class_="level"))
    width = min(40.0, PLOT / max(1, len(ordered)))
    for index, one in enumerate(ordered):
        before = 0.0
        parts = [element("title", escaped(_stage_words(one)))]
        for key, _, colour in STAGES:
            after = getattr(one, key)
            if after is None or after <= before:
                continue
            y, high = bottom - after / most * height, (after - before) / most * height
            x = LEFT + index * width
            parts.append(rect(x, y, width - 1, high, style=f"fill:{colour}"))
            before = after
        shapes.append(element("g", *parts))
    return element("svg", *shapes, viewBox=f"0 0 {WIDTH:g} {bottom + 14:g}")


def _stage_words(one: Stages) -> str:
    moments = ", ".join(f"{name} {duration(getattr(one, key))}" for key, name, _ in STAGES)
    return f"kill {one.kill + 1} of {one.node}: {moments}"


def _worst(figures: FailoverFigures) -> str:
    by_kill = {one.kill: one for one in figures.stages}
    worst = sorted(figures.kept, key=lambda sample: -sample.gap_ms)[:WORST]
    rows = []
    for sample in worst:
        stage = by_kill[sample.kill]
        cells = [str(sample.kill + 1), stage.node, sample.client, duration(sample.gap_ms)]
        cells += [duration(getattr(stage, key)) for key, _, _ in STAGES]
        rows.append("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in cells) + "</tr>")
    heads = ["kill", "node", "client", "gap", "elected", "open", "first answer", "all answered"]
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _stalls(stalls: Sequence[Stall]) -> str:
    if not stalls:
        return "<p class=sub>The harness never stood still for more than 50 ms.</p>"
    longest = max(length for _, length in stalls) / 1000
    return (
        f"<p class=sub>The harness stood still for more than 50 ms {len(stalls)} times, "
        f"at most {duration(longest)}; samples that it touches are not counted.</p>"
    )
