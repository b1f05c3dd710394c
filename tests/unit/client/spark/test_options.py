"""Options of source and sink: every wrong one is an error that names it."""

import pickle
import re
from pathlib import Path

import pytest

from paceline.errors import BadNameError, BadRequestError, PacelineError
from paceline.net.connect import Credentials
from paceline.spark.offsets import StartKind
from paceline.spark.options import (
    MIB,
    READ_OPTIONS,
    WRITE_OPTIONS,
    parse_moment,
    read_options,
    write_options,
)

ROOT = Path(__file__).parents[4]

PLAIN = {"endpoints": "127.0.0.1:7700", "topic": "orders"}


def test_defaults_are_those_of_the_guide() -> None:
    options = read_options(PLAIN)

    assert options.access.endpoints == ("127.0.0.1:7700",)
    assert options.selection.topics == ("orders",)
    assert options.starting.kind is StartKind.EARLIEST
    assert options.ending.kind is StartKind.LATEST
    assert options.max_records_per_trigger == 1_000_000
    assert options.max_bytes_per_partition == 128 * MIB
    assert options.batch_bytes == 4 * MIB
    assert options.fail_on_data_loss
    assert options.is_pinned
    assert not options.reads_masters
    assert options.tags is None
    assert len(options.columns) == 10


def test_names_are_taken_whatever_their_case_as_spark_lowers_them() -> None:
    options = read_options({"ENDPOINTS": "h:1", "Topic": "t", "startingoffsets": "latest"})

    assert options.starting.kind is StartKind.LATEST


def test_unknown_option_is_named_with_the_nearest_known() -> None:
    with pytest.raises(PacelineError) as refusal:
        read_options({**PLAIN, "startingoffset": "latest"})

    assert "'startingoffset'" in refusal.value.message
    assert "did you mean startingOffsets?" in refusal.value.message


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"endpoints": "nowhere"}, "endpoints"),
        ({"endpoints": "h:99999"}, "endpoints"),
        ({"topics": "a,b"}, "topic"),
        ({"topic": ".."}, "topic"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "startingTimestamp"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingTimestampStrategy": "none"}, "startingTimestampStrategy"),
        ({"newQueues": "never"}, "newQueues"),
        ({"columns": "offset,offsets"}, "columns"),
        ({"columns": "offset,offset"}, "columns"),
        ({"columns": ""}, "columns"),
        ({"includeProperties": "yes"}, "includeProperties"),
        ({"tags": "a || "}, "tags"),
        ({"keyFilter": ""}, "keyFilter"),
        ({"keyFilter": "a ||"}, "keyFilter"),
        ({"keyFilter": "[]"}, "keyFilter"),
        ({"keyFilter": '["a", ""]'}, "keyFilter"),
        ({"keyFilter": '["a", 1]'}, "keyFilter"),
        ({"keyFilter": "[a]"}, "keyFilter"),
        ({"numRetries": "-1"}, "numRetries"),
        ({"tlsCa": "a.pem", "tls.ca": "b.pem"}, "tlsCa"),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger"),
        ({"maxRecordsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "maxBytesPerTrigger"),
        ({"maxTriggerDelay": "15"}, "maxTriggerDelay"),
        ({"minPartitions": "-1"}, "minPartitions"),
        ({"batchBytes": "2000000000"}, "batchBytes"),
        ({"failOnDataLoss": "1"}, "failOnDataLoss"),
        ({"leaseSeconds": "1"}, "leaseSeconds"),
        ({"consumerGroup": "a b"}, "consumerGroup"),
        ({"readFrom": "anywhere"}, "readFrom"),
        ({"pushdown": "maybe"}, "pushdown"),
        ({"token": "t", "tokenFile": "f"}, "token"),
    ],
)
def test_wrong_value_names_its_option(wrong: dict[str, str], field: str) -> None:
    with pytest.raises(PacelineError) as refusal:
        read_options({**PLAIN, **wrong})

    assert refusal.value.details["field"] == field


@pytest.mark.parametrize("missing", ["endpoints", "topic"])
def test_missing_option_is_named(missing: str) -> None:
    with pytest.raises(PacelineError) as refusal:
        read_options({key: value for key, value in PLAIN.items() if key != missing})

    assert refusal.value.details["field"] == missing


def test_ways_to_choose_topics() -> None:
    access = {"endpoints": "h:1"}

    assert read_options({**access, "topics": "b, a,b"}).selection.topics == ("b", "a")
    assert read_options({**access, "topicsPattern": "or.*"}).selection.pattern == "or.*"
    assigned = read_options({**access, "assign": '{"t": [1, 0, 1]}'}).selection.assigned
    assert assigned == {"t": (0, 1)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"topicsPattern": "("},
        {"assign": "{}"},
        {"assign": "nothing"},
        {"assign": '{"t": []}'},
        {"assign": '{"t": [-1]}'},
        {"assign": '{"t": [true]}'},
        {"topics": " , "},
    ],
)
def test_wrong_choice_of_topics_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(PacelineError) as refusal:
        read_options({"endpoints": "h:1", **wrong})

    assert refusal.value.details["field"] in wrong


def test_tags_in_both_spellings() -> None:
    assert read_options({**PLAIN, "tags": "a || b"}).tags == frozenset({"a", "b"})
    assert read_options({**PLAIN, "tags": "a,b"}).tags == frozenset({"a", "b"})
    assert read_options({**PLAIN, "tags": "*"}).tags is None


def test_keys_are_written_like_tags_or_as_json() -> None:
    assert read_options(PLAIN).keys is None
    assert read_options({**PLAIN, "keyFilter": "*"}).keys is None
    assert read_options({**PLAIN, "keyFilter": "k1 || k2"}).keys == frozenset({"k1", "k2"})
    assert read_options({**PLAIN, "keyFilter": '["a,b", "c||d"]'}).keys == frozenset(
        {"a,b", "c||d"}
    )


def test_names_that_other_sources_have_are_taken() -> None:
    options = read_options({**PLAIN, "tls.ca": "ca.pem", "numRetries": "0"})

    assert (options.access.tls_ca, options.access.is_tls) == ("ca.pem", True)
    assert options.access.num_retries == 0
    assert read_options(PLAIN).access.num_retries is None
    for acks in ("all", "-1"):
        write_options({**PLAIN, "acks": acks})


def test_guide_names_every_option() -> None:
    guide = (ROOT / "docs/SPARK.md").read_text()

    for name in {*READ_OPTIONS, *WRITE_OPTIONS}:
        assert f"`{name}`" in guide, name


def test_moments_are_milliseconds_or_iso_times() -> None:
    assert parse_moment("1700000000000", name="t") == 1_700_000_000_000
    assert parse_moment("2023-11-14T22:13:20", name="t") == 1_700_000_000_000
    assert parse_moment("2023-11-14T23:13:20+01:00", name="t") == 1_700_000_000_000


def test_credentials_are_not_in_what_plans_print() -> None:
    options = read_options({**PLAIN, "token": "very-secret"})

    assert "very-secret" not in repr(options)
    assert options.access.token == "very-secret"


SECRETS_OF_SPARK = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Spark's default of spark.redaction.regex: what it leaves out of plans, logs and its web pages."""
KEYED = {"PACELINE_ACCESS_KEY": "pk1", "PACELINE_SECRET_KEY": "very-secret"}
FILES = {"PACELINE_TLS_CA": "ca.pem", "PACELINE_TLS_CERT": "c.pem", "PACELINE_TLS_KEY": "k.pem"}


def test_what_is_secret_is_no_option_that_spark_shows() -> None:
    """A secret key is none at all: it comes from the environment or a file."""
    assert SECRETS_OF_SPARK.search("token")
    assert not any("secret" in name.lower() for name in (*READ_OPTIONS, *WRITE_OPTIONS))


def test_an_access_key_comes_from_the_environment_unless_a_token_is_named() -> None:
    for access in (read_options(PLAIN, KEYED).access, write_options(PLAIN, KEYED).access):
        assert access.credentials == Credentials(access_key="pk1", secret_key="very-secret")
        assert "very-secret" not in repr(access) + repr(access.credentials)
        assert pickle.loads(pickle.dumps(access)) == access  # noqa: S301  # as Spark does
    assert read_options({**PLAIN, "tokenFile": "f"}, KEYED).access.credentials is None
    assert read_options(PLAIN).access.credentials is None


def test_tls_comes_from_the_options_or_the_environment() -> None:
    found = read_options(PLAIN, FILES).access
    assert (found.tls_ca, found.tls_cert, found.tls_key, found.is_tls) == (
        "ca.pem", "c.pem", "k.pem", True
    )  # fmt: skip
    given = {**PLAIN, "tlsCa": "a", "tlsCert": "b", "tlsKey": "c"}
    found = read_options(given, FILES).access
    assert (found.tls_ca, found.tls_cert, found.tls_key) == ("a", "b", "c")
    plain = read_options({**PLAIN, "endpoints": "http://h:1"}, FILES).access
    assert (plain.is_tls, plain.tls_cert) == (False, None)
    for wrong in ({"tlsKey": "c"}, {"tlsCert": "b", "tlsKey": "c"}):
        with pytest.raises(BadRequestError):
            read_options({**PLAIN, **wrong})


def test_the_namespace_is_that_of_the_options_or_the_environment() -> None:
    shop = {"PACELINE_NAMESPACE": "shop"}
    assert read_options(PLAIN).access.namespace is None
    assert read_options(PLAIN, shop).access.namespace == "shop"
    assert write_options({**PLAIN, "namespace": "farm"}, shop).access.namespace == "farm"
    assert read_options({**PLAIN, "namespace": ""}, shop).access.namespace == ""
    with pytest.raises(BadNameError):
        read_options({**PLAIN, "namespace": "a%b"})


def test_https_endpoints_or_an_authority_mean_tls() -> None:
    assert read_options({**PLAIN, "endpoints": "https://h:1"}).access.is_tls
    assert read_options({**PLAIN, "tlsCa": "ca.pem"}).access.is_tls
    assert not read_options(PLAIN).access.is_tls


def test_sink_takes_its_own_options_only() -> None:
    options = write_options({**PLAIN, "jobId": "nightly-7", "compression": "zstd"})

    assert (options.topic, options.job_id, options.compression) == ("orders", "nightly-7", "zstd")
    assert options.is_deduplicated
    with pytest.raises(PacelineError):
        write_options({**PLAIN, "startingOffsets": "latest"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"jobId": "a b"},
        {"chunkRecords": "70000"},
        {"compression": "gzip"},
        {"dedup": "no"},
        {"acks": "1"},
    ],
)
def test_wrong_option_of_a_sink_names_itself(wrong: dict[str, str]) -> None:
    with pytest.raises(PacelineError) as refusal:
        write_options({**PLAIN, **wrong})

    assert refusal.value.details["field"] in wrong
