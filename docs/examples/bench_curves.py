# %% [markdown]
# # Curves of the benchmark
#
# Draws throughput and latency by the number of messages in flight, from the table that
# `paceline bench --all --rounds 3 --write docs/BENCHMARKS.md` wrote.
#
#     python docs/examples/bench_curves.py docs/BENCHMARKS.md --throughput throughput.svg \
#         --latency latency.svg
#
# Needs the extra `docs` (`pip install '.[docs]'`).

# %%
import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

COLORS = {
    ("paceline", "memory"): "#27618f",
    ("paceline", "fsync"): "#c26a1b",
    ("nats-default", "memory"): "#6b6b6b",
}
"""Of each system and durability that is drawn, with three replicas."""


class Point(NamedTuple):
    """One row of the table."""

    inflight: int
    rate: int
    lowest: int
    highest: int
    p50_ms: float
    p99_ms: float


Curves = dict[tuple[str, str], list[Point]]


# %% [markdown]
# ## From the table


# %%
def curves_of(text: str) -> Curves:
    """What the table says of produce by streams, by system and durability."""
    lines = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line] for line in lines]
    names = next(row for row in cells if row[0] == "system")
    curves: Curves = {}
    for row in cells[cells.index(names) + 1 :]:
        found = dict(zip(names, row, strict=False))
        key = (found["system"], found.get("durability", ""))
        if key not in COLORS or found["case"] != "produce":
            continue
        if found["path"] not in ("", "stream") or found["replicas"] not in ("", "3"):
            continue
        rate = number(found["msg/s"])
        spread = found["lowest to highest"].partition(" to ")
        low, high = (number(part) if part else rate for part in (spread[0], spread[2]))
        latencies = (float(found[name].replace(",", "")) for name in ("p50 ms", "p99 ms"))
        curves.setdefault(key, []).append(
            Point(number(found["in flight"]), rate, low, high, *latencies)
        )
    return curves


def number(text: str) -> int:
    return int(text.replace(",", ""))


# %% [markdown]
# ## The pictures


# %%
def draw_throughput(curves: Curves, path: Path) -> None:
    """Messages a second; bars from the slowest round to the fastest."""
    figure, axes = _axes("messages a second")
    for key, points in curves.items():
        rates = [point.rate for point in points]
        spread = [
            [point.rate - point.lowest for point in points],
            [point.highest - point.rate for point in points],
        ]
        places = [point.inflight for point in points]
        axes.errorbar(
            places, rates, spread, color=COLORS[key], marker="o", capsize=3, label=_label(key)
        )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _save(figure, axes, path)


def draw_latency(curves: Curves, path: Path) -> None:
    """p50 as lines, p99 as broken ones; a message's time from send to acknowledgement."""
    figure, axes = _axes("ms from send to acknowledgement")
    for key, points in curves.items():
        places = [point.inflight for point in points]
        color, label = COLORS[key], _label(key)
        axes.plot(
            places,
            [point.p50_ms for point in points],
            color=color,
            marker="o",
            label=f"{label}, p50",
        )
        axes.plot(
            places,
            [point.p99_ms for point in points],
            color=color,
            linestyle="--",
            label=f"{label}, p99",
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    _save(figure, axes, path)


def _axes(what: str):  # type: ignore[no-untyped-def]
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="tight")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_xlabel("messages of 1 KiB in flight")
    axes.set_ylabel(what)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _label(key: tuple[str, str]) -> str:
    system, durability = key
    return f"{system} ({durability})" if system == "paceline" else "NATS JetStream R3"


def _save(figure, axes, path: Path) -> None:  # type: ignore[no-untyped-def]
    import matplotlib

    axes.set_xticks([1, 64, 512, 4096], labels=["1", "64", "512", "4,096"])
    axes.legend(frameon=False)
    # Text as text, and nothing of when and where it was drawn: the same figures, the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


# %%
def main(arguments: Sequence[str] | None = None) -> int:
    """Both pictures, by these options or those of the command line."""
    parser = argparse.ArgumentParser(description="Curves of a table of `paceline bench`.")
    parser.add_argument("table", type=Path)
    parser.add_argument("--throughput", type=Path, required=True)
    parser.add_argument("--latency", type=Path, required=True)
    found = parser.parse_args(arguments)
    curves = curves_of(found.table.read_text("utf-8"))
    draw_throughput(curves, found.throughput)
    draw_latency(curves, found.latency)
    return 0


# %%
if __name__ == "__main__":
    raise SystemExit(main())
