"""The bench of docs/BENCHMARKS.md, small: every case does its work, and the table is written."""

from pathlib import Path
from typing import Any

from tests.spark.topics import Topics

from paceline.spark import bench

ROWS = 3000


def test_every_case_has_a_figure_and_the_table_takes_it(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = "spark-bench-small"
    bench.fill(topics.endpoints, topic, rows=ROWS, size=200)

    figures = bench.measured(spark, topics.endpoints, topic, size=200, runs=1)

    assert {one.case for one in figures} == {
        "noop", "noop-tuples", "parquet", "parquet-without-properties", "sink"
    }  # fmt: skip
    assert all(one.seconds > 0 and one.mb_per_s > 0 for one in figures)
    assert {one.rows for one in figures if one.case != "sink"} == {ROWS}
    [sink] = [one for one in figures if one.case == "sink"]
    # One run of warm-up and one that counts, each of them new rows.
    assert topics.frame(spark, f"{topic}-copies").count() == 2 * sink.rows > 0

    path = tmp_path / "figures.md"
    path.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n")
    bench.write_figures(path, figures, runs=1)

    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert f"| noop | {ROWS:,} | 200 |" in text
    assert "old" not in text
