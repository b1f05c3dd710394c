"""Pure: the report of one run as one HTML page that needs nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from paceline_chaos.history.decided import decided
from paceline_chaos.history.model import Entry, History
from paceline_chaos.report.lanes import Election, FaultSpan, Mark, Story, story_of
from paceline_chaos.report.look import SCRIPT, STYLE
from paceline_chaos.report.plots import timeline
from paceline_chaos.report.rates import (
    ClientSends,
    Rates,
    Span,
    client_sends,
    outcome_counts,
    rates_of,
    span_of,
)
from paceline_chaos.report.scale import duration, seconds
from paceline_chaos.report.svg import escaped
from paceline_chaos.report.words import actor, moment_us, sentence
from paceline_chaos.verdict import Verdict, Violation

VIOLATIONS_MAX = 40
PROOF_MAX = 12
ROWS_MAX = 200
CLIENTS_MAX = 64


NO_VERDICT = "NO VERDICT: the run stopped in the middle"


def page_of(history: History, verdict: Verdict, *, is_whole: bool = True) -> str:
    """The whole document. Not whole: the run stopped in the middle, and nobody can call it good."""
    span = span_of(history.entries)
    rates, story = rates_of(history, span), story_of(history, span)
    clients = client_sends(history, span)
    proofs = _proofs(history, verdict)
    marks = list(_violation_marks(verdict, proofs, span))
    name = _name(history.world)
    parts = [
        f"<h1>{escaped(name)}</h1><p class=sub>{escaped(_summary(history, span))}</p>",
        _verdict(verdict, is_whole=is_whole),
        _tiles(rates, story, clients, span, elections=decided(history.entries).elections),
        _violations(verdict, proofs, span),
        f"<h2>Time line</h2>{_legend()}<div class=plot>",
        timeline(rates, story, marks, span.length_ms),
        "</div>",
        _elections(story.elections),
        _clients(clients),
        _faults(story.faults),
        f"<div class=columns>{_operations(history)}{_counters(verdict)}</div>",
        _world(history.world),
    ]
    return _document(name, "\n".join(parts), rates)


def _document(title: str, body: str, rates: Rates) -> str:
    figures = {
        "step": rates.step_ms,
        "ok": rates.acknowledged,
        "fail": rates.failed,
        "unknown": rates.unknown,
        "p50": _rounded(rates.p50_ms),
        "p99": _rounded(rates.p99_ms),
    }
    # Nothing in it comes from a history but numbers.
    data = orjson.dumps(figures).decode()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n"
        f'</main><div id="tip"></div><script type="application/json" id="rates">{data}</script>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 2) for value in values]


def _name(world: Mapping[str, Any]) -> str:
    """ "world, seed 4711" or "processes, kill-master"."""
    bed = str(world.get("bed", "run"))
    parts = [str(world[key]) for key in ("scenario", "family", "name") if world.get(key)]
    if world.get("seed") is not None:
        parts.append(f"seed {world['seed']}")
    return ", ".join([bed, *parts[:2]])


def _summary(history: History, span: Span) -> str:
    return f"{duration(span.length_ms)}, {len(history.entries):,} entries"


def _verdict(verdict: Verdict, *, is_whole: bool) -> str:
    if verdict.is_good and not is_whole:
        return f"<div class='verdict bad'><b>{NO_VERDICT}</b></div>"
    if verdict.is_good:
        return "<div class='verdict good'><b>No violation</b>: every checker is content.</div>"
    count = len(verdict.violations)
    broken = sorted({violation.property for violation in verdict.violations})
    rest = "" if is_whole else "; the run stopped in the middle, the rest is not judged"
    what = "violation" if count == 1 else "violations"
    names = escaped(", ".join(broken))
    return f"<div class='verdict bad'><b>{count:,} {what}</b> of {names}{rest}</div>"


def _tiles(
    rates: Rates, story: Story, clients: Sequence[ClientSends], span: Span, *, elections: int
) -> str:
    acknowledged = sum(rates.acknowledged)
    gaps = [client.gap_ms for client in clients if client.gap_ms is not None]
    tiles = [
        (f"{acknowledged:,}", "acknowledged"),
        (f"{acknowledged / span.length_ms * 1000:,.0f}/s", "on average"),
        (f"{sum(rates.failed):,}", "refused"),
        (f"{sum(rates.unknown):,}", "outcome unknown"),
        (duration(None if rates.gap is None else rates.gap[1]), "longest gap"),
        (duration(max(gaps, default=None)), "longest for a client"),
        (f"{elections:,}", "elections"),
        (f"{len(story.faults):,}", "faults"),
    ]
    shown = "".join(
        f"<div class=tile><b>{value}</b><span>{name}</span></div>" for value, name in tiles
    )
    return f"<div class=tiles>{shown}</div>"


def _proofs(history: History, verdict: Verdict) -> dict[int, Entry]:
    wanted = {
        number
        for violation in verdict.violations[:VIOLATIONS_MAX]
        for number in violation.proof[:PROOF_MAX]
    }
    if not wanted:
        return {}
    return {entry.number: entry for entry in history.entries if entry.number in wanted}


def _violation_marks(verdict: Verdict, proofs: Mapping[int, Entry], span: Span) -> Iterable[Mark]:
    """Each violation at the latest moment of its proof, in order of time."""
    marks = []
    for violation in verdict.violations[:VIOLATIONS_MAX]:
        moments = [moment_us(proofs[number]) for number in violation.proof if number in proofs]
        known = [moment for moment in moments if moment is not None]
        at = span.ms(max(known)) if known else span.length_ms
        marks.append(Mark(at=at, label=violation.property, detail=violation.sentence))
    return sorted(marks, key=lambda mark: mark.at)


def _violations(verdict: Verdict, proofs: Mapping[int, Entry], span: Span) -> str:
    shown = [_violation(one, proofs, span) for one in verdict.violations[:VIOLATIONS_MAX]]
    more = len(verdict.violations) - len(shown)
    if more > 0:
        shown.append(f"<p class=sub>and {more:,} more</p>")
    return "".join(shown)


def _violation(violation: Violation, proofs: Mapping[int, Entry], span: Span) -> str:
    rows = []
    for number in violation.proof[:PROOF_MAX]:
        entry = proofs.get(number)
        if entry is None:
            rows.append([f"#{number}", "", "", "not in this history"])
            continue
        moment = moment_us(entry)
        at = "end" if moment is None else f"{span.ms(moment) / 1000:.3f} s"
        rows.append([f"#{number}", at, actor(entry), sentence(entry)])
    more = len(violation.proof) - PROOF_MAX
    rest = f"<p class=sub>and {more:,} more entries</p>" if more > 0 else ""
    table = _table(["entry", "at", "who", "what"], rows, numbers=(), class_="proof")
    return (
        f"<div class=violation-card><span class=chip>{escaped(violation.property)}</span>"
        f"{escaped(violation.sentence)}{table}{rest}</div>"
    )


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int],
    class_: str = "",
) -> str:
    """`numbers`: indices of columns that align to the right. Cells are escaped."""
    if not rows:
        return ""

    def cells(values: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if index in numbers else ''}>{escaped(value)}</{tag}>"
            for index, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    head = cells(heads, "th")
    return f'<div class=scroll><table class="{class_}"><tr>{head}</tr>{body}</table></div>'


def _legend() -> str:
    keys = [
        ("var(--ok)", "acknowledged, in sync"),
        ("var(--fail)", "refused"),
        ("var(--unknown)", "outcome unknown"),
        ("var(--e1)", "master (one colour for each epoch)"),
        ("color-mix(in srgb,var(--e1) 25%,transparent)", "replica of that epoch"),
        ("var(--fault)", "fault"),
    ]
    shown = "".join(
        f"<span><i style='background:{colour}'></i>{name}</span>" for colour, name in keys
    )
    return f"<div class=legend>{shown}<span>drag: zoom, double click: all</span></div>"


def _elections(elections: Sequence[Election]) -> str:
    rows = [
        [
            seconds(round(one.at)),
            one.group,
            str(one.epoch),
            one.master,
            one.members,
            one.reason,
            duration(one.open_after_ms),
            duration(one.ack_after_ms),
        ]
        for one in elections[:ROWS_MAX]
    ]
    heads = [
        "at",
        "group",
        "epoch",
        "master",
        "set",
        "reason",
        "seen open after",
        "first ack after",
    ]
    title = "Elections, with the first ones and those for new settings"
    return _section(title, _table(heads, rows, numbers=(2, 6, 7)))


def _clients(clients: Sequence[ClientSends]) -> str:
    """Those that waited longest, if there are many."""
    rows = sorted(clients, key=lambda client: -(client.gap_ms or 0))[:CLIENTS_MAX]
    longest = max((client.gap_ms or 0 for client in rows), default=0) or 1
    heads = "<th>client</th>" + "".join(
        f"<th class=n>{name}</th>"
        for name in ("acknowledged", "refused", "unknown", "p50", "p99", "at")
    )
    body = "".join(
        f"<tr><td>{escaped(one.client)}</td><td class=n>{one.acknowledged:,}</td>"
        f"<td class=n>{one.failed:,}</td><td class=n>{one.unknown:,}</td>"
        f"<td class=n>{duration(one.p50_ms)}</td><td class=n>{duration(one.p99_ms)}</td>"
        f"<td class=n>{seconds(round(one.gap_at_ms))}</td><td>{duration(one.gap_ms)}"
        f"<i class=bar style='width:{180 * (one.gap_ms or 0) / longest:.0f}px'></i></td></tr>"
        for one in rows
    )
    if not body:
        return ""
    table = f"<table><tr>{heads}<th>longest gap between acknowledgements</th></tr>{body}</table>"
    return _section("Clients", f"<div class=scroll>{table}</div>")


def _faults(faults: Sequence[FaultSpan]) -> str:
    rows = [
        [
            seconds(round(fault.start)),
            fault.kind,
            fault.target,
            "" if fault.is_blow else duration(fault.end - fault.start),
            fault.detail,
        ]
        for fault in faults[:ROWS_MAX]
    ]
    table = _table(["at", "kind", "target", "for", ""], rows, numbers=(3,))
    more = len(faults) - len(rows)
    rest = f"<p class=sub>and {more:,} more</p>" if more > 0 else ""
    return _section("Faults", table + rest)


def _operations(history: History) -> str:
    rows = []
    for kind, counter in outcome_counts(history).items():
        plain = {"ok", "fail", "unknown"}
        codes = ", ".join(
            f"{code} {count:,}" for code, count in counter.most_common() if code not in plain
        )
        rows.append([kind, *(f"{counter[name]:,}" for name in ("ok", "fail", "unknown")), codes])
    heads = ["operation", "ok", "refused", "unknown", "errors"]
    return f"<div>{_section('Operations', _table(heads, rows, numbers=(1, 2, 3)))}</div>"


def _counters(verdict: Verdict) -> str:
    rows = [[name, f"{count:,}"] for name, count in verdict.counters.items()]
    return f"<div>{_section('Counters', _table(['counter', 'count'], rows, numbers=(1,)))}</div>"


def _world(world: Mapping[str, Any]) -> str:
    rows = [[name, _plain(value)] for name, value in world.items()]
    return _section("What ran", _table(["setting", "value"], rows, numbers=()))


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>{content}" if content else ""
