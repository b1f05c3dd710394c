"""A blocking way to the brokers, for drivers and executors: plain HTTP of the standard library.

One `Brokers` belongs to one thread of one task; it keeps a connection to each address. What a
replica can answer is asked of replicas (R3 lets any of them serve what is confirmed), so that a
bulk read never loads a master; each failure goes on to the next replica, and round again with a
pause until `retry_timeout_ms` is over.
"""

import http
import http.client
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    NotMasterError,
    NotYetAvailableError,
    OutcomeUnknownError,
    PacelineError,
    PeerError,
    Retry,
    UnauthenticatedError,
    from_problem,
)
from paceline.net.backoff import Verdict, judge
from paceline.net.connect import ACCESS_KEY_VARIABLE
from paceline.platform.ports import Clock
from paceline.platform.runtime import SystemClock
from paceline.records.decode import BatchView
from paceline.spark.options import Access
from paceline.types import GroupName, ReplicaId
from paceline.wire.calls.request import AnswerT, Request, read_reply
from paceline.wire.cluster import ClusterView, GroupView
from paceline.wire.namespaces import Namespace
from paceline.wire.stream import (
    FETCH_ANSWER,
    FETCH_HEADER,
    FETCH_PART,
    FETCH_QUEUE,
    FRAME_BYTES_MAX,
    FetchCode,
    FetchPart,
)

BATCH_TYPE = "application/vnd.paceline.batch"
ANSWER_BYTES_MAX = 64 * 1024 * 1024
PAUSE_FIRST_MS = 50
PAUSE_MAX_MS = 1000
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""What OpenSSL says of a peer that answers a greeting in plain text."""
_REFUSED: Mapping[int, type[PacelineError]] = {
    http.HTTPStatus.UNAUTHORIZED: UnauthenticatedError,
    http.HTTPStatus.FORBIDDEN: ForbiddenError,
}


class Fetched(NamedTuple):
    """One queue's part of a fetch, and its whole batches in order, CRCs checked."""

    part: FetchPart
    views: list[BatchView]


class Deadline:
    """Rounds of attempts with growing pauses, until the time is over or they were enough."""

    def __init__(self, clock: Clock, access: Access) -> None:
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + access.retry_timeout_ms
        self._left = access.num_retries
        self._pause_ms = PAUSE_FIRST_MS

    def pause(self) -> bool:
        """Wait before the next round; False when there is to be none."""
        left_ms = self._end_ms - self._clock.monotonic_ms()
        if left_ms <= 0 or self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        threading.Event().wait(min(self._pause_ms, left_ms) / 1000)
        self._pause_ms = min(PAUSE_MAX_MS, 2 * self._pause_ms)
        return True


class Brokers:
    """Connections to a cluster. `close`, or use it in a `with`."""

    def __init__(self, access: Access, *, number: int = 0, clock: Clock | None = None) -> None:
        """`number` says with which replica to begin: tasks spread over them."""
        self._access = access
        self._number = number
        self._clock = clock if clock is not None else SystemClock()
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._view: ClusterView | None = None
        self._headers = _credentials(access)
        self._tls = _tls_context(access)
        self._namespace: Namespace | None = None

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- the cluster ------------------------------------------------------------------------------

    def view(self, *, is_fresh: bool = False) -> ClusterView:
        """The cluster view, of whichever endpoint answers first. PeerError when none does."""
        if self._view is None or is_fresh:
            deadline = Deadline(self._clock, self._access)
            while True:
                found = self._newest_view()
                if isinstance(found, ClusterView):
                    self._view = found
                    break
                if not _may_pass(found) or not deadline.pause():
                    raise found
        return self._view

    @property
    def namespace(self) -> Namespace:
        """Where names are: what the options say, or the first view."""
        self.view()
        assert self._namespace is not None, "a view was read"
        return self._namespace

    def _own_view(self, document: Mapping[str, Any]) -> ClusterView:
        view = ClusterView.from_json(document)
        if self._namespace is None:
            given = self._access.namespace
            self._namespace = Namespace(view.namespace if given is None else given)
        return self._namespace.view(view)

    def _newest_view(self) -> ClusterView | PacelineError:
        last: PacelineError = PeerError("no endpoint is named")
        for address in self._access.endpoints:
            try:
                status, body = self._request(address, "GET", "/v1/routes")
            except PeerError as error:
                last = error
                continue
            answer = _json(status, body)
            if status == 200 and not isinstance(answer, PacelineError):
                return self._own_view(answer)
            last = _refusal(answer)
            if not _may_pass(last):
                return last
        return PeerError(
            f"no endpoint of {', '.join(self._access.endpoints)} answers: {last.message}; is the"
            " cluster up, and are these its controllers or brokers?"
            + ("" if self._access.is_tls else " What speaks TLS is named as https://host:port")
            if isinstance(last, PeerError)
            else last.message
        )

    # -- reads ------------------------------------------------------------------------------------

    def call(self, group: GroupName, request: Request[AnswerT], *, is_of_master: bool) -> AnswerT:
        """A call of docs/protocol/stream.md, by the group's master or by any of its replicas."""
        namespace = self.namespace
        body = orjson.dumps(namespace.request(request).to_json())

        def ask(address: str) -> AnswerT:
            status, answer = self._request(address, "POST", "/v1/call", body, "application/json")
            found = _json(status, answer)
            if status != 200 or isinstance(found, PacelineError):
                raise _refusal(found)
            return read_reply(request, namespace.answer(request, found)).answer

        return self._anywhere(group, ask, is_of_master=is_of_master)

    def put(self, group: GroupName, path: str, document: Mapping[str, Any] | None) -> None:
        """PUT `document` at the group's master, or DELETE without one; both may be repeated."""
        body = None if document is None else orjson.dumps(document)
        method = "DELETE" if document is None else "PUT"

        def ask(address: str) -> None:
            status, answer = self._request(address, method, path, body, "application/json")
            if status != 200:
                raise _refusal(_json(status, answer))

        self._anywhere(group, ask, is_of_master=True)

    def fetch(
        self,
        group: GroupName,
        topic_id: int,
        queue_id: int,
        offset: int,
        *,
        bytes_max: int,
        is_of_master: bool = False,
    ) -> Fetched:
        """Whole confirmed batches of one queue from `offset` on, as many as fit `bytes_max`.

        `offset` is below an end that the master told, so a broker that has nothing there is behind
        and is passed over. The part's code may be OFFSET_OUT_OF_RANGE or UNKNOWN_QUEUE.
        """
        bounded = min(bytes_max, FRAME_BYTES_MAX)
        body = FETCH_HEADER.pack(0, bounded, 1, 1)
        body += FETCH_QUEUE.pack(topic_id, queue_id, offset, bounded, 0)

        def ask(address: str) -> Fetched:
            status, answer = self._request(address, "POST", "/v1/fetch", body, BATCH_TYPE)
            if status != 200:
                raise _refusal(_json(status, answer))
            found = _fetched(answer, topic_id, queue_id, offset)
            is_behind = found.part.code == FetchCode.OK and not found.views
            if is_behind or found.part.code == FetchCode.NOT_YET_AVAILABLE:
                raise NotYetAvailableError(f"{address} has not got to offset {offset} yet")
            return found

        return self._anywhere(group, ask, is_of_master=is_of_master)

    def _anywhere(
        self, group: GroupName, ask: Callable[[str], AnswerT], *, is_of_master: bool
    ) -> AnswerT:
        access = self._access
        deadline = Deadline(self._clock, access)
        view = self.view()
        while True:
            last: PacelineError = PeerError(f"group {group} has no broker that could be asked")
            for address in self._order(view, group, is_of_master=is_of_master):
                try:
                    return ask(address)
                except PacelineError as error:
                    if not _may_pass(error):
                        raise
                    last = error
            if not deadline.pause():
                tried = "" if access.num_retries is None else f", numRetries {access.num_retries}"
                raise PeerError(
                    f"no broker of group {group} answered in {access.retry_timeout_ms} ms{tried}:"
                    f" {last.message}"
                )
            view = self.view(is_fresh=True)

    def _order(self, view: ClusterView, group: GroupName, *, is_of_master: bool) -> list[str]:
        """Whom to ask, one after another: replicas first, the master last; or the master alone."""
        found = view.groups.get(group)
        if found is None:
            return []
        if is_of_master:
            master = found.master_view()
            return [] if master is None else [master.client_address]
        return replica_order(found, self._number)

    # -- writes -----------------------------------------------------------------------------------

    def store(self, group: GroupName, topic: str, queue_id: int, batch: bytes) -> dict[str, Any]:
        """Store one batch at the group's master, and again with the same bytes until it is sure.

        The batch carries a producer id and sequence, so a repetition stores nothing twice (R31,
        R32). Raises what the master refuses for good, and OutcomeUnknownError when time is up
        after an attempt that may have been stored.
        """
        deadline = Deadline(self._clock, self._access)
        name = quote(self.namespace.full_topic(topic), safe="")
        path = f"/v1/topics/{name}/queues/{queue_id}/batches"
        is_unknown = False
        view = self.view()
        while True:
            error: PacelineError = NotMasterError(f"group {group} has no master")
            for address in self._order(view, group, is_of_master=True):
                try:
                    status, body = self._request(address, "POST", path, batch, BATCH_TYPE)
                    answer = _json(status, body)
                    if status == 200 and not isinstance(answer, PacelineError):
                        return answer
                    error = _refusal(answer)
                except PeerError as lost:
                    error = lost
            verdict = judge(error)
            if verdict in (Verdict.FATAL, Verdict.SEQUENCE):
                raise error
            is_unknown = is_unknown or verdict is Verdict.UNKNOWN
            if not deadline.pause():
                if is_unknown:
                    raise OutcomeUnknownError(
                        f"whether group {group} stored a batch is not known: {error.message}"
                    )
                raise error
            view = self.view(is_fresh=True)

    # -- one request ------------------------------------------------------------------------------

    def _request(
        self, address: str, method: str, path: str, body: bytes | None = None, kind: str = ""
    ) -> tuple[int, bytes]:
        """Status and body. PeerError when the connection fails, in whatever way; BadRequestError
        when trying again would not help: a certificate that is not trusted, TLS on one side."""
        connection = self._connections.get(address)
        is_reused = connection is not None
        if connection is None:
            connection = self._connections[address] = self._connect(address)
        headers = dict(self._headers)
        if self._access.credentials is not None:
            headers["Authorization"] = self._access.credentials.authorization(
                address, is_encrypted=self._tls is not None
            )
        if kind:
            headers["Content-Type"] = kind
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, _whole(answer)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._connections.pop(address, None)
            if is_reused and isinstance(error, http.client.RemoteDisconnected | BrokenPipeError):
                # An idle connection that the broker closed meanwhile says nothing about it. Only
                # reads and batches with a sequence come here: both may be repeated.
                return self._request(address, method, path, body, kind)
            raise _connection_error(address, error) from error

    def _connect(self, address: str) -> http.client.HTTPConnection:
        host, _, port = address.rpartition(":")
        timeout_s = self._access.request_timeout_ms / 1000
        if self._tls is not None:
            return http.client.HTTPSConnection(
                host.strip("[]"), int(port), timeout=timeout_s, context=self._tls
            )
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)


def replica_order(group: GroupView, number: int) -> list[str]:
    """Client addresses: members of the set from number `number` on, other replicas, the master."""

    def rank(replica_id: ReplicaId) -> tuple[bool, bool, int]:
        return (
            replica_id == group.master,
            replica_id not in group.sync_state_set,
            (int(replica_id) - 1 - number) % max(1, len(group.replicas)),
        )

    return [group.replicas[one].client_address for one in sorted(group.replicas, key=rank)]


def _may_pass(error: PacelineError) -> bool:
    """Whether another replica, or the same one later, may answer."""
    return not isinstance(error, BadRequestError) and error.retry is not Retry.NEVER


def _whole(answer: http.client.HTTPResponse) -> bytes:
    length = answer.length
    if length is not None and length > ANSWER_BYTES_MAX:
        raise http.client.HTTPException(f"an answer of {length} bytes")
    body = answer.read()
    if length is not None and len(body) != length:
        raise http.client.IncompleteRead(body, length - len(body))
    return body


def _connection_error(address: str, error: OSError | http.client.HTTPException) -> PacelineError:
    """A failed connection: one to try again, or one whose options are wrong."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return BadRequestError(
            f"the certificate of {address} is not trusted: {error.verify_message}; option tlsCa"
            " names the authority that signed it",
            field="tlsCa",
        )
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return BadRequestError(
            f"{address} does not speak TLS: name it in option endpoints without https://, and"
            " leave tlsCa out",
            field="endpoints",
        )
    return PeerError(f"{address}: {error or type(error).__name__}")


def _json(status: int, body: bytes) -> "dict[str, Any] | PacelineError":
    """The document of an answer; a proxy in between may say 401 in words of its own."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        refused = _REFUSED.get(status)
        if refused is not None:
            return refused(f"status {status} without a reason: {body[:80]!r}")
        return PeerError(f"an answer that is no JSON: {body[:80]!r}")
    if not isinstance(document, dict):
        return PeerError("an answer that is no JSON object")
    return document


def _refusal(answer: "dict[str, Any] | PacelineError") -> PacelineError:
    error = answer if isinstance(answer, PacelineError) else from_problem(answer)
    if isinstance(error, UnauthenticatedError | ForbiddenError):
        return type(error)(
            f"the credentials of {ACCESS_KEY_VARIABLE}, or of option token or tokenFile were"
            f" refused: {error.message}",
            **error.details,
        )
    return error


def _fetched(body: bytes, topic_id: int, queue_id: int, offset: int) -> Fetched:
    """The one part of a fetch answer. PeerError if it is not what was asked for, CorruptLogError
    if a byte is not what was written: another replica has it whole."""
    if len(body) < FETCH_ANSWER.size + FETCH_PART.size:
        raise PeerError(f"a fetch answer of {len(body)} bytes")
    _, count, _ = FETCH_ANSWER.unpack_from(body)
    part = FetchPart._make(FETCH_PART.unpack_from(body, FETCH_ANSWER.size))
    at = FETCH_ANSWER.size + FETCH_PART.size
    if count != 1 or part.size != len(body) - at:
        raise PeerError(f"a fetch answer of {count} parts, {len(body) - at} bytes for {part.size}")
    views = []
    while at < len(body):
        view = BatchView(body, at)
        view.verify()
        header = view.header
        is_next = header.base_queue_offset <= offset < header.end_queue_offset
        if header.topic_id != topic_id or header.queue_id != queue_id or not is_next:
            raise PeerError(
                f"a batch of topic {header.topic_id} queue {header.queue_id} from offset"
                f" {header.base_queue_offset}, asked was queue {queue_id} from {offset}"
            )
        offset = header.end_queue_offset
        at += header.size_bytes
        views.append(view)
    return Fetched(part, views)


def _credentials(access: Access) -> dict[str, str]:
    token = access.token
    if access.token_file is not None:
        try:
            with open(access.token_file, encoding="utf-8") as file:
                token = file.read().strip()
        except OSError as error:
            raise BadRequestError(
                f"option tokenFile: {access.token_file} cannot be read on this machine: {error}",
                field="tokenFile",
            ) from error
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _tls_context(access: Access) -> ssl.SSLContext | None:
    if not access.is_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=access.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise BadRequestError(
            f"option tlsCa: {access.tls_ca} is no readable certificate file: {error}", field="tlsCa"
        ) from error
    if access.tls_cert is not None:
        try:
            context.load_cert_chain(access.tls_cert, access.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise BadRequestError(
                f"options tlsCert and tlsKey: {access.tls_cert} and {access.tls_key or 'no key'}"
                f" are no readable certificate with its key: {error}",
                field="tlsCert",
            ) from error
    return context
