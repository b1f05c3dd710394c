"""The options of the source and the sink, checked when the query is made.

An unknown option is an error that names it and the nearest known one: a typo in `startingOffsets`
must not read everything. Spark hands option names over in lower case. docs/SPARK.md has the table.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

import orjson

from paceline.errors import BadRequestError, ConfigError
from paceline.net.connect import NAMESPACE_VARIABLE, Shown, credentials_of, tls_of
from paceline.platform.address import parse_address
from paceline.spark.columns import COLUMNS, columns_named
from paceline.spark.offsets import QUEUE_ID_MAX, Position, StartKind, parse_position
from paceline.wire.fields import I64_MAX
from paceline.wire.names import check_name, check_namespace, check_topic_name

MIB = 1024 * 1024
PRODUCER_PATTERN = r"[A-Za-z0-9._:/-]{1,200}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the brokers are reached. Picklable: it travels to the executors."""

    endpoints: tuple[str, ...]
    request_timeout_ms: int = 30_000
    retry_timeout_ms: int = 60_000
    num_retries: int | None = None
    """None: as often as the time allows."""
    token: str | None = None
    token_file: str | None = None
    credentials: Shown | None = None
    """Of the environment, where the options name no token."""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    is_tls: bool = False
    namespace: str | None = None
    """None: the default one of the user."""

    def __repr__(self) -> str:
        """Without the token: plans are logged."""
        return f"Access({','.join(self.endpoints)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which queues: by names, a pattern, or an explicit list of queues."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The source, batch and streaming."""

    access: Access
    selection: Selection
    starting: Position
    ending: Position
    is_timestamp_strict: bool
    new_queues_start: StartKind
    columns: tuple[str, ...]
    tags: frozenset[str] | None
    keys: frozenset[str] | None
    max_records_per_trigger: int
    max_bytes_per_trigger: int | None
    min_records_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int
    max_bytes_per_partition: int
    batch_bytes: int
    fail_on_data_loss: bool
    is_pinned: bool
    lease_seconds: int
    consumer_group: str | None
    reads_masters: bool
    is_pushdown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The sink, batch and streaming."""

    access: Access
    topic: str | None
    producer: str | None
    """Name from which producer ids are derived; a stream takes its query id without it."""
    job_id: str | None
    """Makes a batch write idempotent: the same job written again stores nothing twice."""
    chunk_records: int
    chunk_bytes: int
    compression: str
    is_deduplicated: bool


class Options:
    """Takes options one by one; `done` refuses what nobody asked for."""

    def __init__(self, given: Mapping[str, str], *, known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known = {name.lower(): name for name in known}
        for name in self._given:
            if name not in self._known:
                near = get_close_matches(name, list(self._known), n=1)
                hint = f"; did you mean {self._known[near[0]]}?" if near else ""
                raise BadRequestError(
                    f"unknown option {name!r}{hint} Known are {', '.join(sorted(known))}",
                    field=name,
                )

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name.lower(), default)
        if value is None:
            raise BadRequestError(f"option {name} is missing", field=name)
        return value

    def optional(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def integer(self, name: str, default: int, *, low: int, high: int = I64_MAX) -> int:
        text = self._given.get(name.lower())
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or not low <= int(text) <= high:
            raise BadRequestError(
                f"option {name} must be an integer from {low} to {high}, not {text!r}", field=name
            )
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self._given.get(name.lower())
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise BadRequestError(f"option {name} must be true or false, not {text!r}", field=name)
        return text.strip().lower() == "true"

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        text = self._given.get(name.lower(), default).strip().lower()
        if text not in choices:
            raise BadRequestError(
                f"option {name} must be one of {', '.join(choices)}, not {text!r}", field=name
            )
        return text

    def names(self, name: str, check: Callable[[object, str], str]) -> tuple[str, ...]:
        text = self.text(name)
        found = tuple(check(part.strip(), name) for part in text.split(",") if part.strip())
        if not found:
            raise BadRequestError(f"option {name} is empty", field=name)
        return tuple(dict.fromkeys(found))


ACCESS_OPTIONS = (
    "endpoints", "requestTimeoutMs", "retryTimeoutMs", "numRetries", "token", "tokenFile", "tlsCa",
    "tls.ca", "tlsCert", "tlsKey", "namespace",
)  # fmt: skip
"""tls.ca is tlsCa, for those who know it so from other sources. None but `token` is secret, and
Spark leaves that out of what it shows (spark.redaction.regex); an access key comes from the
environment."""
NO_ENVIRONMENT: Mapping[str, str] = {}
READ_OPTIONS = (
    *ACCESS_OPTIONS,
    "topic", "topics", "topicsPattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingTimestampStrategy", "newQueues", "columns",
    "includeProperties", "tags", "keyFilter", "maxRecordsPerTrigger", "maxBytesPerTrigger",
    "minRecordsPerTrigger", "maxTriggerDelay", "minPartitions", "maxBytesPerPartition",
    "batchBytes", "failOnDataLoss", "pin", "leaseSeconds", "consumerGroup", "readFrom", "pushdown",
)  # fmt: skip
WRITE_OPTIONS = (
    *ACCESS_OPTIONS,
    "topic", "producerId", "jobId", "chunkRecords", "chunkBytes", "compression", "dedup", "acks",
    "checkpointLocation",
)  # fmt: skip
"""checkpointLocation is Spark's own; it shows it to a sink as well."""


def environment() -> Mapping[str, str]:
    """Of this process. Spark starts the Java of the driver, and that the workers that plan a query,
    with what the driver's Python had when the session was made."""
    return os.environ


def read_options(
    given: Mapping[str, str], environment: Mapping[str, str] = NO_ENVIRONMENT
) -> ReadOptions:
    """The checked options of a read; of `environment` the variables that clients read. Raises
    BadRequestError naming the option."""
    options = Options(given, known=READ_OPTIONS)
    starting, ending = _range(options)
    names = tuple(column.name for column in COLUMNS)
    if not options.flag("includeProperties", True):
        names = tuple(name for name in names if name != "properties")
    if options.has("columns"):
        names = tuple(part.strip() for part in options.text("columns").split(","))
        columns_named(names)
    if options.has("maxRecordsPerTrigger") and options.has("maxBytesPerTrigger"):
        raise BadRequestError(
            "give maxRecordsPerTrigger or maxBytesPerTrigger: Spark takes one limit of a source",
            field="maxBytesPerTrigger",
        )
    most_bytes = options.integer("maxBytesPerTrigger", 0, low=1) or None
    least = options.integer("minRecordsPerTrigger", 0, low=1) or None
    group = options.optional("consumerGroup")
    return ReadOptions(
        access=_access(options, environment),
        selection=_selection(options),
        starting=starting,
        ending=ending,
        is_timestamp_strict=options.choice(
            "startingTimestampStrategy", "latest", ("latest", "error")
        )
        == "error",
        new_queues_start=StartKind(options.choice("newQueues", "earliest", ("earliest", "latest"))),
        columns=names,
        tags=_texts(options, "tags"),
        keys=_texts(options, "keyFilter"),
        max_records_per_trigger=options.integer("maxRecordsPerTrigger", 1_000_000, low=1),
        max_bytes_per_trigger=most_bytes,
        min_records_per_trigger=least,
        max_trigger_delay_ms=_duration(options, "maxTriggerDelay", 15 * 60_000),
        min_partitions=options.integer("minPartitions", 1, low=1, high=100_000),
        max_bytes_per_partition=options.integer("maxBytesPerPartition", 128 * MIB, low=1),
        batch_bytes=options.integer("batchBytes", 4 * MIB, low=1, high=1024 * MIB),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        is_pinned=options.flag("pin", True),
        lease_seconds=options.integer("leaseSeconds", 600, low=10, high=7 * 86_400),
        consumer_group=None if group is None else check_name(group, "consumerGroup"),
        reads_masters=options.choice("readFrom", "replicas", ("replicas", "master")) == "master",
        is_pushdown=options.choice("pushdown", "auto", ("auto", "true", "false")) != "false",
    )


def write_options(
    given: Mapping[str, str], environment: Mapping[str, str] = NO_ENVIRONMENT
) -> WriteOptions:
    """The checked options of a write, as of a read. Raises BadRequestError naming the option."""
    options = Options(given, known=WRITE_OPTIONS)
    topic = options.optional("topic")
    # Brokers acknowledge what the whole sync state set has (R4); nothing less can be asked for.
    options.choice("acks", "all", ("all", "-1"))
    return WriteOptions(
        access=_access(options, environment),
        topic=None if topic is None else check_topic_name(topic),
        producer=_producer(options, "producerId"),
        job_id=_producer(options, "jobId"),
        chunk_records=options.integer("chunkRecords", 2048, low=1, high=65_535),
        chunk_bytes=options.integer("chunkBytes", MIB // 2, low=1, high=8 * MIB),
        compression=options.choice("compression", "none", ("none", "lz4", "zstd")),
        is_deduplicated=options.flag("dedup", True),
    )


def _producer(options: Options, name: str) -> str | None:
    text = options.optional(name)
    if text is not None and re.fullmatch(PRODUCER_PATTERN, text) is None:
        raise BadRequestError(f"option {name} must match {PRODUCER_PATTERN}", field=name)
    return text


def _access(options: Options, environment: Mapping[str, str]) -> Access:
    endpoints, is_tls, is_plain = [], False, False
    for part in options.text("endpoints").split(","):
        text = part.strip().removesuffix("/")
        is_tls |= text.startswith("https://")
        is_plain |= text.startswith("http://")
        try:
            address = parse_address(text.removeprefix("https://").removeprefix("http://"))
        except ConfigError as error:
            raise BadRequestError(f"option endpoints: {error.message}", field="endpoints") from None
        endpoints.append(str(address))
    if options.has("token") and options.has("tokenFile"):
        raise BadRequestError("give token or tokenFile, not both", field="token")
    if options.has("tlsCa") and options.has("tls.ca"):
        raise BadRequestError("tls.ca is another name of tlsCa: give one of them", field="tlsCa")
    tls = None if is_plain else tls_of(environment)
    authority = options.optional("tlsCa") or options.optional("tls.ca")
    if authority is None and tls is not None:
        authority = tls.ca_file
    certificate = options.optional("tlsCert") or (tls and tls.cert_file) or None
    if options.has("tlsKey") and certificate is None:
        raise BadRequestError("tlsKey is the key of tlsCert: give both", field="tlsKey")
    if certificate is not None and not is_tls and authority is None:
        raise BadRequestError(
            "a certificate is shown over TLS only: name https:// in option endpoints, or tlsCa",
            field="tlsCert",
        )
    has_token = options.has("token") or options.has("tokenFile")
    namespace = options.optional("namespace")
    if namespace is None:
        namespace = environment.get(NAMESPACE_VARIABLE)
    retries = options.integer("numRetries", 0, low=0, high=1_000_000)
    return Access(
        endpoints=tuple(endpoints),
        request_timeout_ms=options.integer("requestTimeoutMs", 30_000, low=1, high=3_600_000),
        retry_timeout_ms=options.integer("retryTimeoutMs", 60_000, low=0, high=86_400_000),
        num_retries=retries if options.has("numRetries") else None,
        token=options.optional("token"),
        token_file=options.optional("tokenFile"),
        credentials=None if has_token else credentials_of(environment),
        tls_ca=authority,
        tls_cert=certificate,
        tls_key=options.optional("tlsKey") or (tls and tls.key_file) or None,
        is_tls=is_tls or authority is not None,
        namespace=namespace and check_namespace(namespace),
    )


def _selection(options: Options) -> Selection:
    ways = ("topic", "topics", "topicsPattern", "assign")
    given = [name for name in ways if options.has(name)]
    if len(given) != 1:
        found = f"{' and '.join(given)} are" if given else "none is"
        raise BadRequestError(
            f"give one of the options {', '.join(ways)}: {found} there", field="topic"
        )
    match given[0]:
        case "topic":
            return Selection(topics=(check_topic_name(options.text("topic")),))
        case "topics":
            return Selection(topics=options.names("topics", check_topic_name))
        case "topicsPattern":
            pattern = options.text("topicsPattern")
            try:
                re.compile(pattern)
            except re.error as error:
                raise BadRequestError(
                    f"option topicsPattern is no regular expression: {error}", field="topicsPattern"
                ) from None
            return Selection(pattern=pattern)
        case _:
            return Selection(assigned=_assigned(options.text("assign")))


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    def wrong(why: str) -> BadRequestError:
        return BadRequestError(
            f'option assign must be JSON like {{"topic": [0, 1]}}: {why}', field="assign"
        )

    try:
        document: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise wrong(str(error)) from None
    if not isinstance(document, dict) or not document:
        raise wrong("it names no topic")
    found = {}
    for topic, queues in document.items():
        check_topic_name(topic, "assign")
        are_ids = isinstance(queues, list) and all(
            type(queue) is int and 0 <= queue <= QUEUE_ID_MAX for queue in queues
        )
        if not are_ids or not queues:
            raise wrong(f"{topic} needs a list of queue ids")
        found[topic] = tuple(sorted(set(queues)))
    return found


def _range(options: Options) -> tuple[Position, Position]:
    """Starting and ending positions; a timestamp wins over nothing but a default."""
    for stem in ("starting", "ending"):
        if options.has(f"{stem}Offsets") and options.has(f"{stem}Timestamp"):
            raise BadRequestError(
                f"give {stem}Offsets or {stem}Timestamp, not both", field=f"{stem}Timestamp"
            )
    starting = parse_position(options.text("startingOffsets", "earliest"), name="startingOffsets")
    if options.has("startingTimestamp"):
        moment = parse_moment(options.text("startingTimestamp"), name="startingTimestamp")
        starting = Position(StartKind.TIMESTAMP, moment)
    ending = parse_position(options.text("endingOffsets", "latest"), name="endingOffsets")
    if ending.kind not in (StartKind.LATEST, StartKind.OFFSETS):
        raise BadRequestError(
            "endingOffsets must be latest or offsets as JSON", field="endingOffsets"
        )
    if options.has("endingTimestamp"):
        moment = parse_moment(options.text("endingTimestamp"), name="endingTimestamp")
        ending = Position(StartKind.TIMESTAMP, moment)
    return starting, ending


def _duration(options: Options, name: str, default_ms: int) -> int:
    text = options.optional(name)
    if text is None:
        return default_ms
    match = re.fullmatch(r"([0-9]{1,9})\s*(ms|s|m|h)", text.strip())
    if match is None:
        raise BadRequestError(f"option {name} must be like 500ms, 30s, 15m, 1h", field=name)
    return int(match.group(1)) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[match.group(2)]


def _texts(options: Options, name: str) -> frozenset[str] | None:
    """`*` or nothing: all; RocketMQ's `a || b`, a comma list, or JSON where texts hold such."""
    text = options.text(name, "*").strip()
    if text == "*":
        return None
    parts: Any = [part.strip() for part in re.split(r"\|\||,", text)]
    if text.startswith("["):
        try:
            parts = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise BadRequestError(f"option {name} is no JSON: {error}", field=name) from None
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise BadRequestError(
            f'option {name} must be like a || b, or ["a", "b"], not {text!r}', field=name
        )
    return frozenset(parts)


def parse_moment(text: str, *, name: str) -> int:
    """Unix milliseconds of a number or of an ISO 8601 time (UTC when it names no zone)."""
    plain = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", plain):
        return int(plain)
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        raise BadRequestError(
            f"option {name} must be unix milliseconds or ISO 8601, not {text!r}", field=name
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
