"""`spark-submit .../paceline/spark/submit.py --bootstrap HOST:PORT --topic T --to DIR ...`

The export as a Spark application: the arguments of `paceline export`, master and resources as
spark-submit has them. Prints the summary as one JSON line.
"""

import argparse
import sys
from pathlib import Path

import orjson

from paceline.errors import BadRequestError, ConfigError, PacelineError, to_problem
from paceline.spark.export.command import Work, order_of, run_export

MIB = 1024 * 1024
FILE_MIB_MAX = 65_536


def parse(arguments: list[str]) -> Work:
    """The work that the arguments name; a wrong one ends the program with 2, or BadRequestError."""
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
    parser.add_argument("--namespace")
    found = parser.parse_args(_with_start_joined(arguments))
    if not 1 <= found.file_mib <= FILE_MIB_MAX:
        parser.error(f"--file-mib must be from 1 to {FILE_MIB_MAX}, not {found.file_mib}")
    order = order_of(
        bootstrap=found.bootstrap,
        topics=found.topic,
        to=found.to,
        file_format=found.format,
        partition_by=found.partition_by,
        body=found.body,
        start=found.start,
        accept_loss=found.accept_loss,
        token_file=found.token_file,
        tls_ca=found.tls_ca,
        namespace=found.namespace,
    )
    return Work(
        order=order,
        master=None,
        is_compact=found.compact,
        is_verify=found.verify,
        file_bytes=found.file_mib * MIB,
    )


def _with_start_joined(arguments: list[str]) -> list[str]:
    """`--start -1h` as one argument: argparse takes what begins with a dash for an option."""
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] == "--start":
            found[-1] = f"--start={argument}"
        else:
            found.append(argument)
    return found


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
