"""RocketMQ's Python client, gRPC: one scenario of a job (interop/README.md)."""

import json
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

from rocketmq.grpc_protocol import FilterType

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

_LOCK = threading.Lock()
Job = dict[str, Any]


def tell(event: str, **fields: Any) -> None:
    """One event, also from the client's own threads."""
    with _LOCK:
        sys.stdout.write(json.dumps({"event": event} | fields) + "\n")
        sys.stdout.flush()


def configuration(job: Job) -> ClientConfiguration:
    credentials = Credentials(job.get("access_key", ""), job.get("secret_key", ""))
    return ClientConfiguration(job["endpoint"], credentials, job.get("namespace", ""))


def text_of(job: Job, index: int) -> str:
    """The body of one message."""
    text = f"{job['prefix']}-{index}"
    if job["scenario"] == "send-transaction":
        text += f":{chosen(job, 'answers', index)}"
    return text.ljust(job.get("body_size", 0), ".")


def message_of(job: Job, index: int, text: str) -> Message:
    message = Message()
    message.topic = job["topic"]
    message.body = text.encode()
    if tag := chosen(job, "tags", index):
        message.tag = tag
    if group := chosen(job, "groups", index):
        message.message_group = group
    if job.get("priorities"):
        message.priority = chosen(job, "priorities", index)
    if job.get("delay_ms"):
        # This client knows whole seconds alone.
        message.delivery_timestamp = -(-(time.time_ns() // 1_000_000 + job["delay_ms"]) // 1000)
    if keys := [f"{job['prefix']}-{index}-k{key}" for key in range(job.get("keys", 0))]:
        # An assignment takes one key: several pass through the function behind it alone.
        Message.keys.fset(message, *keys)
    for name, value in (job.get("properties", {}) | {"index": str(index)}).items():
        message.add_property(name, value)
    return message


def chosen(job: Job, name: str, index: int) -> Any:
    values = job.get(name)
    return values[index % len(values)] if values else None


class Checker(TransactionChecker):  # type: ignore[misc]
    """Answers a check by what the body says after its colon."""

    def check(self, message: Message) -> TransactionResolution:
        answer = message.body.decode().rpartition(":")[2].rstrip(".").removeprefix("check-")
        tell("checked", message_id=message.message_id, answer=answer)
        is_commit = answer == "commit"
        return TransactionResolution.COMMIT if is_commit else TransactionResolution.ROLLBACK


def send(job: Job) -> None:
    scenario = job["scenario"]
    checker = Checker() if scenario == "send-transaction" else None
    producer = Producer(configuration(job), (job["topic"],), checker, tls_enable=job["tls"])
    producer.startup()
    tell("ready")
    started, pending = time.monotonic(), []
    for index in range(job["count"]):
        text = text_of(job, index)
        if rate := job.get("rate", 0):
            time.sleep(max(0.0, started + index / rate - time.monotonic()))
        try:
            message = message_of(job, index, text)
            if scenario == "send-async":
                pending.append((text, producer.send_async(message)))
            elif scenario == "send-transaction":
                send_in_transaction(producer, text, message)
            else:
                receipt = producer.send(message)
                tell_sent(text, receipt, due_s=message.delivery_timestamp)
                if scenario == "send-recall" and index % 2 == 1:
                    recalled = producer.recall_message(job["topic"], receipt.recall_handle)
                    tell("recalled", body=text, message_id=recalled)
        except Exception as error:
            tell("failed", body=text, error=f"{type(error).__name__}: {error}")
    for text, future in pending:
        tell_result(text, future)
    if checker:
        sys.stdin.read()
    producer.shutdown()


def load(job: Job) -> None:
    """Sends as fast as it can: nothing is told of single messages."""
    producer = Producer(configuration(job), (job["topic"],), tls_enable=job["tls"])
    producer.startup()
    tell("ready")
    text, in_flight = "".ljust(job["body_size"], "."), threading.Semaphore(job["in_flight"])
    failed: list[str] = []

    def ended(future: "Future[Any]") -> None:
        in_flight.release()
        if error := future.exception():
            failed.append(f"{type(error).__name__}: {error}")

    def send_all(count: int) -> None:
        for index in range(count):
            if job["in_flight"] == 1:
                producer.send(message_of(job, index, text))
            else:
                in_flight.acquire()
                producer.send_async(message_of(job, index, text)).add_done_callback(ended)
        for _ in range(job["in_flight"]):
            in_flight.acquire()
        for _ in range(job["in_flight"]):
            in_flight.release()

    send_all(job["count"] // 5)
    tell("warm")
    started = time.monotonic()
    send_all(job["count"])
    tell("measured", seconds=time.monotonic() - started, failed=failed[:3])
    producer.shutdown()


def send_in_transaction(producer: Producer, text: str, message: Message) -> None:
    transaction = producer.begin_transaction()
    receipt = producer.send(message, transaction)
    tell_sent(text, receipt)
    answer = text.rpartition(":")[2].rstrip(".")
    if answer == "commit":
        transaction.commit()
    elif answer == "rollback":
        transaction.rollback()
    if not answer.startswith("check-"):
        tell("answered", body=text, answer=answer)


def tell_sent(text: str, receipt: Any, *, due_s: int | None = None) -> None:
    told = {
        "due_unix_ms": due_s * 1000 if due_s else None,
        "transaction_id": receipt.transaction_id or None,
        "recall_handle": receipt.recall_handle or None,
        "queue": receipt.message_queue.message_queue0().id if receipt.message_queue else None,
        "offset": receipt.offset,
    }
    told = {name: value for name, value in told.items() if value is not None}
    tell("sent", body=text, message_id=receipt.message_id, **told)


def tell_result(text: str, future: "Future[Any]") -> None:
    try:
        tell_sent(text, future.result(timeout=30))
    except Exception as error:
        tell("failed", body=text, error=f"{type(error).__name__}: {error}")


def tell_received(message: Message) -> None:
    tell(
        "received",
        body=message.body.decode(),
        message_id=message.message_id,
        tag=message.tag,
        keys=list(message.keys or ()),
        properties=dict(message.properties or {}),
        attempt=message.delivery_attempt,
        message_group=message.message_group,
        at_unix_ms=time.time_ns() // 1_000_000,
    )


def subscription(job: Job) -> dict[str, FilterExpression]:
    wanted = job.get("filter") or {"type": "tag", "expression": "*"}
    kind = FilterType.SQL if wanted["type"] == "sql" else FilterType.TAG
    return {job["topic"]: FilterExpression(wanted["expression"], kind)}


class Listener(MessageListener):  # type: ignore[misc]
    """Fails the first deliveries, as the job says."""

    def __init__(self, fail_first: int) -> None:
        self._fail_first = fail_first

    def consume(self, message: Message) -> ConsumeResult:
        tell_received(message)
        if message.delivery_attempt <= self._fail_first:
            return ConsumeResult.FAILURE
        tell("acked", message_id=message.message_id)
        return ConsumeResult.SUCCESS


def push(job: Job) -> None:
    listener = Listener(job.get("fail_first", 0))
    consumer = PushConsumer(
        configuration(job), job["group"], listener, subscription(job), tls_enable=job["tls"]
    )
    consumer.startup()
    tell("ready")
    sys.stdin.read()
    consumer.shutdown()


def simple(job: Job) -> None:
    consumer = SimpleConsumer(
        configuration(job),
        job["group"],
        subscription(job),
        await_duration=job.get("await_ms", 5000) // 1000,
        tls_enable=job["tls"],
    )
    consumer.startup()
    tell("ready")
    stopped = threading.Event()

    def wait_for_end_of_input() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    while not stopped.is_set():
        try:
            received = consumer.receive(
                job.get("batch", 16), job.get("invisible_ms", 30_000) // 1000
            )
        except Exception as error:
            tell("failed", body="", error=f"{type(error).__name__}: {error}")
            stopped.wait(0.2)
            continue
        for message in received:
            tell_received(message)
            if message.delivery_attempt > job.get("fail_first", 0):
                acknowledge(consumer, job, message, stopped)
    consumer.shutdown()


def acknowledge(
    consumer: SimpleConsumer, job: Job, message: Message, stopped: threading.Event
) -> None:
    try:
        if job.get("renew_ms"):
            consumer.change_invisible_duration(message, job["renew_ms"] // 1000)
            tell("renewed", message_id=message.message_id)
        stopped.wait(job.get("hold_ms", 0) / 1000)
        consumer.ack(message)
        tell("acked", message_id=message.message_id)
    except Exception as error:
        tell("failed", body=message.body.decode(), error=f"{type(error).__name__}: {error}")


SENDS = ("", "-async", "-fifo", "-delay", "-recall", "-transaction", "-priority")
SCENARIOS = {f"send{name}": send for name in SENDS}
SCENARIOS |= {"push": push, "push-fifo": push, "simple": simple, "load": load}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job: Job = json.load(file)
    run = SCENARIOS.get(job["scenario"])
    if run is None:
        tell("unsupported", why=f"this client has no {job['scenario']}")
        return
    try:
        run(job)
    except Exception as error:
        tell("failed", body="", error=f"{type(error).__name__}: {error}")
    tell("done")


if __name__ == "__main__":
    main()
