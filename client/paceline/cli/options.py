"""Options that the commands share, and how a command meets the cluster.

Nothing of the client library is imported before a command runs: `--help` and wrong usage answer
at once.
"""

import math
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from paceline.errors import NotFoundError, PacelineError, PeerError, TopicNotFoundError

if TYPE_CHECKING:
    from paceline.cli.profiles import Profile
    from paceline.net.cluster import Cluster
    from paceline.net.connect import ClientTls, Credentials, TokenFile
    from paceline.security.node_proof import NodeProofs
    from paceline.wire.cluster import TopicView

BOOTSTRAP_DEFAULT = "127.0.0.1:7700"
"""Where `paceline up` puts its first controller."""
CONNECT_TIMEOUT_DEFAULT_MS = 3_000
TOPIC_WAIT_MS = 1_000
"""How long a topic made a moment ago may take to reach the node that we ask."""
TOPIC_MADE_MS = 5_000
"""How long brokers may take to have a topic made."""

Result = TypeVar("Result")


REPLICA_ID = click.IntRange(1, 2**32 - 1)


class FiniteRange(click.FloatRange):
    """A range that NaN is outside of: click compares only, and NaN is never too small."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What `main` found in the environment, for commands as click's context object."""

    bootstrap: str = ""
    """Empty: the profile's, or BOOTSTRAP_DEFAULT."""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()
    """Of the file with profiles."""
    profile: str = "default"
    """Its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Where the cluster is, and how long to look for it."""

    bootstrap: str
    timeout_ms: int
    credentials: "Credentials | TokenFile | None" = None
    tls: "ClientTls | None" = None
    namespace: str | None = None
    """None: the default one of the user."""
    secret_file: str = ""
    """Of the cluster's secret, in place of credentials; empty: none."""


def as_command(found: object) -> click.Command:
    """`found`, which must be a click command."""
    assert isinstance(found, click.Command), found
    return found


def cluster_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds --bootstrap, --namespace and --connect-timeout-ms (given as `connect`) and --json
    (`as_json`)."""

    @click.option(
        "--bootstrap",
        metavar="HOST:PORT[,...]",
        default=_default_bootstrap,
        help="Controllers or brokers of the cluster."
        f"  [env: PACELINE_BOOTSTRAP; default: {BOOTSTRAP_DEFAULT}]",
    )
    @click.option(
        "--namespace",
        metavar="NAME",
        help='Where topics and consumer groups are; "": in none.  [env: PACELINE_NAMESPACE;'
        " default: that of the user]",
    )
    @click.option(
        "--connect-timeout-ms",
        type=click.IntRange(1, 600_000),
        default=CONNECT_TIMEOUT_DEFAULT_MS,
        show_default=True,
        help="Give up when no node answers for so long.",
    )
    @click.option("--json", "as_json", is_flag=True, help="JSON lines for programs.")
    @wraps(function)
    def run(
        *, bootstrap: str, namespace: str | None, connect_timeout_ms: int, **arguments: Any
    ) -> None:
        connect = Connect(
            bootstrap=bootstrap,
            timeout_ms=connect_timeout_ms,
            credentials=_credentials(bootstrap),
            tls=_tls(bootstrap),
            namespace=_namespace(bootstrap) if namespace is None else namespace,
        )
        function(connect=connect, **arguments)

    return run


def defaults() -> Defaults:
    """Of the running command."""
    return click.get_current_context().find_object(Defaults) or Defaults()


def _default_bootstrap() -> str:
    found = defaults()
    if found.bootstrap:
        return found.bootstrap
    profile = _profile(found)
    return BOOTSTRAP_DEFAULT if profile is None else profile.bootstrap


def _credentials(bootstrap: str) -> "Credentials | TokenFile | None":
    """Those of the environment, or of the profile, which are for its own cluster and no other."""
    from paceline.net.connect import credentials_of

    found = defaults()
    credentials = credentials_of(found.environment)
    if credentials is not None:
        return credentials
    profile = _profile(found)
    if profile is None or profile.bootstrap != bootstrap:
        return None
    return profile.credentials()


def _tls(bootstrap: str) -> "ClientTls | None":
    """That of the environment, or of the profile for its own cluster."""
    from paceline.net.connect import ClientTls, tls_of

    found = defaults()
    tls = tls_of(found.environment)
    profile = _profile(found)
    if tls is None and profile is not None and profile.bootstrap == bootstrap and profile.tls_ca:
        tls = ClientTls(ca_file=profile.tls_ca)
    return tls


def _namespace(bootstrap: str) -> str | None:
    """That of the environment, or of the profile for its own cluster."""
    from paceline.net.connect import NAMESPACE_VARIABLE

    found = defaults()
    profile = _profile(found)
    if NAMESPACE_VARIABLE in found.environment:
        return found.environment[NAMESPACE_VARIABLE]
    is_of_profile = profile is not None and profile.bootstrap == bootstrap
    return profile.namespace if profile is not None and is_of_profile else None


def _profile(found: Defaults) -> "Profile | None":
    from paceline.cli.profiles import read_profiles

    return read_profiles(found.folder).get(found.profile)


def run_async(
    work: Coroutine[Any, Any, Result], *, is_bulk: bool = False, told: Collection[str] = ()
) -> Result:
    """Run a command's coroutine; with `is_bulk` on uvloop, whose import a short command saves.

    What the library logs meanwhile goes to stderr, but for the events `told`.
    """
    import asyncio

    from paceline.cli.logs import logs_on_stderr

    with logs_on_stderr(told=told):
        if is_bulk:
            try:
                import uvloop
            except ImportError:
                pass  # asyncio's own loop does the same, slower
            else:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    return runner.run(work)
        return asyncio.run(work)


@asynccontextmanager
async def open_cluster(connect: Connect) -> "AsyncIterator[Cluster]":
    """The cluster, known and watched. PeerError with what to do when nobody answers in time."""
    from paceline.net.cluster import Cluster
    from paceline.net.connect import ConnectSettings

    is_owner = bool(connect.secret_file)
    credentials = None if is_owner else connect.credentials
    settings = ConnectSettings(connect.bootstrap, credentials, connect.tls, connect.namespace)
    cluster = Cluster(settings, proofs=_proofs(connect.secret_file) if is_owner else None)
    try:
        cluster.start()
        try:
            await cluster.watch.wait_for(lambda view: True, timeout_ms=connect.timeout_ms)
        except PeerError:
            raise _nobody_answers(connect, cluster.watch.last_error) from None
        yield cluster
    finally:
        await cluster.close()


def _proofs(secret_file: str) -> "NodeProofs":
    """ConfigError where the file is not what it should be."""
    from paceline.platform.secret import ClusterSecrets
    from paceline.security.node_proof import proofs_of_operator

    return proofs_of_operator(ClusterSecrets.read(secret_file), name="operator")


def _nobody_answers(connect: Connect, last_error: PacelineError | None) -> PacelineError:
    where = "any of " + connect.bootstrap if "," in connect.bootstrap else connect.bootstrap
    # A refused connection is what the sentence says already; anything else is worth its words.
    cause = None if last_error is None else last_error.__cause__
    is_plain = last_error is None or (
        isinstance(cause, OSError) and "certificate" not in last_error.message
    )
    why = "" if last_error is None or is_plain else f" ({last_error.message})"
    return PeerError(
        f"no controller answers at {where}{why}: start a cluster with `paceline up`, or name"
        " another with --bootstrap",
        bootstrap=connect.bootstrap,
    )


async def find_topic(cluster: "Cluster", name: str) -> "TopicView":
    """The topic. BadNameError, ForbiddenError; TopicNotFoundError says how to make it."""
    from paceline.wire.names import check_readable_topic_name

    topic = check_readable_topic_name(name)
    try:
        return await cluster.wait_topic(topic, timeout_ms=TOPIC_WAIT_MS)
    except TopicNotFoundError:
        raise TopicNotFoundError(
            f"topic {topic} does not exist; create it with `paceline topic create {topic}`",
            topic=topic,
        ) from None


async def find_or_make_topic(cluster: "Cluster", name: str) -> "TopicView":
    """As `find_topic`, for a send: brokers make a topic that does not exist, unless they are told
    not to (`auto_create_topic_enable`)."""
    from paceline.net.master_http import MasterRequests
    from paceline.queues import master_address
    from paceline.wire.calls.groups import EnsureTopic
    from paceline.wire.names import check_topic_name

    topic, view = check_topic_name(name), cluster.view
    if view is not None and cluster.topic(topic) is None:
        groups = [group for group in sorted(view.groups) if master_address(view, group)]
        with suppress(NotFoundError):  # they make none: told below
            for group in groups[:1]:
                masters = MasterRequests(cluster, timeout_ms=TOPIC_MADE_MS)
                await masters.call(group, EnsureTopic(topic=topic))
    return await find_topic(cluster, topic)


async def find_readable(cluster: "Cluster", name: str) -> "TopicView":
    """As `find_topic`, and NoPermissionError where waiting for messages would be in vain."""
    from paceline.consumer.fetch.unreadable_topics import not_readable

    topic = await find_topic(cluster, name)
    if not topic.can_read:
        raise not_readable(topic)
    return topic


def unix_ms_of(text: str | None, option: str) -> int | None:
    """What a time given as an option means; click.UsageError for none."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"{option} {text!r} is no time like 2030-01-31T12:00") from error
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
