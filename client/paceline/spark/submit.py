"""`spark-submit .../paceline/spark/submit.py --bootstrap HOST:PORT --topic T --to DIR ...`

The export as a Spark application: the arguments of `paceline export`, master and resources as
spark-submit has them. Prints the summary as one JSON line.
"""

import argparse
import sys
from pathlib import Path

import orjson

from paceline.errors import BadRequestError, ConfigError, PacelineError, to_problem
from paceline.spark.export.command import Work, run_export
from paceline.spark.export.run import ExportOrder

MIB = 1024 * 1024


def parse(arguments: list[str]) -> Work:
    """The work that the arguments name; a wrong one ends the program with 2."""
    parser = argparse.ArgumentParser(prog="submit.py", description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,...]")
    parser.add_argument("--topic", required=True, metavar="NAME[,...]")
    parser.add_argument("--to", required=True, type=Path)
    parser.add_argument("--format", default="parquet", choices=["parquet", "json", "csv"])
    parser.add_argument("--partition-by", default="")
    parser.add_argument("--body", choices=["binary", "base64", "text"])
    parser.add_argument("--start", default="earliest")
    parser.add_argument("--compact", action="store_true")
    parser.add_argument("--file-mib", type=int, default=256)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--accept-loss", action="store_true")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--tls-ca", type=Path)
    found = parser.parse_args(arguments)
    options = {
        "endpoints": found.bootstrap,
        "topics": found.topic,
        "startingOffsets": found.start,
        "failOnDataLoss": "false" if found.accept_loss else "true",
    }
    for name, path in (("tokenFile", found.token_file), ("tlsCa", found.tls_ca)):
        if path is not None:
            options[name] = str(path.absolute())
    order = ExportOrder(
        to=found.to.absolute(),
        options=options,
        format=found.format,
        partition_by=tuple(part.strip() for part in found.partition_by.split(",") if part.strip()),
        body=found.body,
    )
    return Work(
        order=order,
        master=None,
        is_compact=found.compact,
        is_verify=found.verify,
        file_bytes=max(1, found.file_mib) * MIB,
    )


def main(arguments: list[str]) -> int:
    """Exit code: 0 done, 1 failed or faults were found, 2 wrong input."""

    def tell(what: str) -> None:
        sys.stderr.write(f"{what}\n")

    try:
        summary = run_export(parse(arguments), tell=tell, tasks=lambda done, count: None)
    except PacelineError as error:
        sys.stderr.write(orjson.dumps(to_problem(error), default=str).decode() + "\n")
        return 2 if isinstance(error, BadRequestError | ConfigError) else 1
    sys.stdout.write(orjson.dumps(summary, default=str).decode() + "\n")
    return 1 if summary.get("faults") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
