# %% [markdown]
# # Delays of flights, from a topic to a picture
#
# The demo's records (336,776 departures from New York in 2013) go through a cluster and come back
# as files; Spark SQL then says how late each carrier is. The same figures are computed from the
# source file by a plain loop, and must be equal.
#
# Run it against a cluster of `paceline up`:
#
#     python docs/examples/flights.py --bootstrap 127.0.0.1:7700
#
# Needs the extra `spark` and Java 17; the picture the extra `docs` (`pip install '.[docs]'`):
# `--plot flights.svg`. In a notebook run the cells one after another; the last one has the options.

# %%
import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import orjson

from paceline import BlockingAdminClient, BlockingProducer, Message
from paceline.cli.local.flights import FLIGHTS_COUNT, flight_rows, flights_archive
from paceline.spark.export.run import ExportOrder, export
from paceline.spark.session import open_session

TOPIC = "flights-example"
FLIGHTS_A_SEND = 20_000
Delays = dict[str, tuple[int, int]]
"""Carrier -> flights that arrived, and the sum of their delays in minutes."""


# %% [markdown]
# ## Into the cluster
# Keyed by tail number, so that the flights of one aircraft keep their order.


# %%
def send(bootstrap: str, rows: Iterator[dict[str, str]]) -> None:
    """Make the topic anew and send every record as JSON."""
    # Blocking clients have a loop of their own: that of a notebook runs already.
    with BlockingAdminClient(bootstrap) as admin:
        if any(topic.topic == TOPIC for topic in admin.topics.all()):
            admin.topics.delete(TOPIC)
        admin.topics.create(TOPIC, queues=8)
    with BlockingProducer(bootstrap) as producer:
        while chunk := list(islice(rows, FLIGHTS_A_SEND)):
            producer.send_many(
                Message(TOPIC, orjson.dumps(row), key=row["tailnum"], tag=row["carrier"])
                for row in chunk
            )


# %% [markdown]
# ## To files, and to figures
# The export writes Parquet, each record once. Spark SQL reads it like any other table.


# %%
def delays_by_spark(bootstrap: str, folder: Path) -> Delays:
    """Export the topic to `folder` and ask Spark SQL."""
    spark = open_session("local[2]", name="flights", settings={"spark.driver.memory": "1g"})
    order = ExportOrder(to=folder, options={"endpoints": bootstrap, "topic": TOPIC})
    done = export(spark, order, tell=lambda what: None)
    sys.stdout.write(f"exported {done.rows:,} flights in {done.seconds:.1f} s\n")
    flights = spark.read.parquet(str(folder / "data"))
    flights.createOrReplaceTempView("flights")
    rows = spark.sql(
        """
        SELECT flight.carrier AS carrier, count(*) AS flights, sum(delay) AS minutes
        FROM (
            SELECT from_json(cast(body AS string), 'carrier string, arr_delay string') AS flight,
                   try_cast(flight.arr_delay AS int) AS delay
            FROM flights
        )
        WHERE delay IS NOT NULL
        GROUP BY flight.carrier
        """
    ).collect()
    spark.stop()
    return {row["carrier"]: (row["flights"], row["minutes"]) for row in rows}


# %% [markdown]
# ## The same, without any of it


# %%
def delays_by_loop(rows: Iterator[dict[str, str]]) -> Delays:
    """The figures from the source file."""
    found: Delays = {}
    for row in rows:
        if row["arr_delay"] not in ("", "NA"):
            flights, minutes = found.get(row["carrier"], (0, 0))
            found[row["carrier"]] = (flights + 1, minutes + int(float(row["arr_delay"])))
    return found


# %% [markdown]
# ## The picture


# %%
def draw(delays: Delays, path: Path) -> None:
    """Mean delay at arrival by carrier, the latest on top."""
    import matplotlib
    from matplotlib.figure import Figure

    means = sorted((minutes / flights, carrier) for carrier, (flights, minutes) in delays.items())
    figure = Figure(figsize=(7, 4.5), layout="tight")
    axes = figure.subplots()
    names = [f"{carrier} {mean:.1f}" for mean, carrier in means]
    axes.barh(names, [mean for mean, _ in means], color="#27618f")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("minutes late at arrival, mean of all flights of 2013 from New York")
    axes.spines[["top", "right", "left"]].set_visible(False)
    # Text as text, and nothing of when and where it was drawn: the same figures, the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "flights"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


# %%
def main(arguments: Sequence[str] | None = None) -> int:
    """All of it, by these options or those of the command line; 1 if the figures differ."""
    parser = argparse.ArgumentParser(description="Delays of flights, through a cluster.")
    parser.add_argument("--bootstrap", default="127.0.0.1:7700")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/paceline")
    parser.add_argument("--rows", type=int, default=FLIGHTS_COUNT)
    parser.add_argument("--plot", type=Path, help="Write the picture here (SVG or PNG).")
    found = parser.parse_args(arguments)
    archive = flights_archive(found.cache)
    send(found.bootstrap, islice(flight_rows(archive), found.rows))
    with tempfile.TemporaryDirectory(prefix="paceline-flights") as folder:
        by_spark = delays_by_spark(found.bootstrap, Path(folder) / "export")
    by_loop = delays_by_loop(islice(flight_rows(archive), found.rows))
    for carrier, (flights, minutes) in sorted(by_spark.items()):
        sys.stdout.write(
            f"{carrier}  {flights:>7,} flights  {minutes / flights:>6.1f} minutes late\n"
        )
    if by_spark != by_loop:
        sys.stdout.write("NOT equal to the figures of the source file\n")
        return 1
    sys.stdout.write(f"{len(by_loop)} carriers, equal to the figures of the source file\n")
    if found.plot is not None:
        draw(by_spark, found.plot)
    return 0


# %% [markdown]
# ## Run it
# A notebook gives its options here: `main(["--bootstrap", "127.0.0.1:7700"])`.

# %%
if "ipykernel" in sys.modules:
    main([])  # the command line is the kernel's own
elif __name__ == "__main__":
    sys.exit(main())
