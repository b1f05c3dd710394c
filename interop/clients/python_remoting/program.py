"""RocketMQ's Python client, remoting (C++ inside): one scenario of a job (interop/README.md)."""

import json
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

# The client's library reads it when it is loaded, and writes its logs there.
os.environ["HOME"] = tempfile.mkdtemp(prefix="python-remoting-")

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer  # noqa: E402
from rocketmq.ffi import MessageModel  # noqa: E402

Job = dict[str, Any]
SEND_TIMEOUT_MS = 10_000
ASYNC_TIMEOUT_S = 60
PAUSE_S = 0.1
_LOCK = threading.Lock()
_OUTPUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the C++ library prints


def tell(event: str, **fields: Any) -> None:
    """One event, also from the client's own threads."""
    with _LOCK:
        _OUTPUT.write(json.dumps({"event": event} | fields) + "\n")
        _OUTPUT.flush()


def failed(body: str, error: Exception) -> None:
    tell("failed", body=body, error=f"{type(error).__name__}: {error}")


def chosen(job: Job, name: str, index: int) -> Any:
    values = job.get(name)
    return values[index % len(values)] if values else None


def body_of(job: Job, index: int) -> str:
    text = f"{job['prefix']}-{index}"
    return text.ljust(job.get("body_size", 0), ".")


def message_of(job: Job, index: int) -> Message:
    message = Message(job["topic"])
    message.set_body(body_of(job, index))
    if tag := chosen(job, "tags", index):
        message.set_tags(tag)
    if job.get("keys"):
        keys = (f"{job['prefix']}-{index}-k{key}" for key in range(job["keys"]))
        message.set_keys(" ".join(keys))
    if group := chosen(job, "groups", index):
        message.set_property("__SHARDINGKEY", group)
    if job.get("delay_level"):
        message.set_delay_time_level(job["delay_level"])
    for name, value in (job.get("properties", {}) | {"index": str(index)}).items():
        message.set_property(name, value)
    return message


def connected(job: Job, client: Any) -> Any:
    client.set_namesrv_addr(job["nameserver"])
    if job.get("access_key"):
        client.set_session_credentials(job["access_key"], job["secret_key"], "")
    return client


def started_producer(job: Job) -> Producer:
    group = job["group"] or "interop-producer"
    producer = connected(job, Producer(group, timeout=job.get("timeout_ms") or SEND_TIMEOUT_MS))
    producer.start()
    return producer


def tell_sent(body: str, result: Any) -> None:
    more = {} if result.status.name == "OK" else {"status": result.status.name}
    tell("sent", body=body, message_id=result.msg_id, offset=result.offset, **more)


def send(job: Job) -> None:
    producer = started_producer(job)
    tell("ready")
    started = time.monotonic()
    open_calls = threading.Semaphore(0)
    count = 0
    for index in range(job["count"]):
        body = body_of(job, index)
        if job.get("rate"):
            time.sleep(max(0.0, started + index / job["rate"] - time.monotonic()))
        try:
            if job["scenario"] == "send-async":
                send_async(producer, job, index, open_calls)
                count += 1
            else:
                send_one(producer, job, index)
        except Exception as error:
            failed(body, error)
    for _ in range(count):
        if not open_calls.acquire(timeout=ASYNC_TIMEOUT_S):
            raise TimeoutError("callbacks did not come")
    producer.shutdown()


def send_one(producer: Producer, job: Job, index: int) -> None:
    body, message = body_of(job, index), message_of(job, index)
    if job["scenario"] == "send-oneway":
        producer.send_oneway(message)
        tell("sent", body=body)
    elif job["scenario"] == "send-ordered":
        group = chosen(job, "groups", index) or ""
        number = zlib.crc32(group.encode()) & 0x7FFFFFFF
        tell_sent(body, producer.send_orderly(message, number))
    else:
        tell_sent(body, producer.send_sync(message))


def send_async(producer: Producer, job: Job, index: int, done: threading.Semaphore) -> None:
    body = body_of(job, index)

    def succeeded(result: Any) -> None:
        tell_sent(body, result)
        done.release()

    def has_failed(error: Exception) -> None:
        failed(body, error)
        done.release()

    producer.send_async(message_of(job, index), succeeded, has_failed)


def send_batches(job: Job) -> None:
    producer = started_producer(job)
    tell("ready")
    size = job.get("batch", 10)
    for start in range(0, job["count"], size):
        numbers = range(start, min(start + size, job["count"]))
        try:
            messages = [message_of(job, index) for index in numbers]
            result = producer.send_batch(messages)
        except Exception as error:
            for index in numbers:
                failed(body_of(job, index), error)
        else:
            for index in numbers:
                tell_sent(body_of(job, index), result)
    producer.shutdown()


def text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def tell_received(job: Job, message: Any) -> str:
    """The client gives properties by their names alone: those that the job sets, and the index."""
    names = ["index", *job.get("properties", {})]
    unique, group = text(message.get_property("UNIQ_KEY")), message.get_property("__SHARDINGKEY")
    identity = unique or message.id
    tell(
        "received",
        body=text(message.body),
        message_id=identity,
        topic=message.topic,
        tag=text(message.tags),
        keys=text(message.keys).split(),
        properties={name: text(message.get_property(name)) for name in names},
        attempt=message.reconsume_times + 1,
        queue=message.queue_id,
        offset=message.queue_offset,
        born_unix_ms=message.born_timestamp,
        stored_unix_ms=message.store_timestamp,
        at_unix_ms=time.time_ns() // 1_000_000,
        **({"message_group": text(group)} if group else {}),
    )
    return identity


class Again(Exception):
    """The client delivers again what a callback raises for."""


def push(job: Job) -> None:
    is_broadcasting = job["scenario"] == "push-broadcasting"
    model = MessageModel.BROADCASTING if is_broadcasting else MessageModel.CLUSTERING
    consumer = PushConsumer(job["group"], job["scenario"] == "push-ordered", model)
    connected(job, consumer)
    consumer.set_instance_name(f"interop-{os.getpid()}")

    def callback(message: Any) -> None:
        identity = tell_received(job, message)
        if message.reconsume_times < job.get("fail_first", 0):
            raise Again
        tell("acked", message_id=identity)

    consumer.subscribe(job["topic"], callback, job.get("filter", {}).get("expression", "*"))
    consumer.start()
    tell("ready")
    sys.stdin.read()
    consumer.shutdown()


def pull(job: Job) -> None:
    consumer = connected(job, PullConsumer(job["group"]))
    consumer.start()
    tell("ready")
    is_closed = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        is_closed.set()

    threading.Thread(target=watch, daemon=True).start()
    while not is_closed.wait(PAUSE_S):
        try:
            for message in consumer.pull(job["topic"]):
                tell("acked", message_id=tell_received(job, message))
        except Exception as error:
            failed("", error)
    consumer.shutdown()


SENDS = ("send", "send-async", "send-oneway", "send-ordered", "send-delay")
SCENARIOS: dict[str, Callable[[Job], None]] = dict.fromkeys(SENDS, send)
SCENARIOS |= dict.fromkeys(("push", "push-ordered", "push-broadcasting"), push)
SCENARIOS |= {"send-batch": send_batches, "pull": pull}


def what_is_missing(job: Job) -> str | None:
    """What of a job this client does not have."""
    if job["scenario"] not in SCENARIOS:
        return str(job["scenario"])
    if job.get("filter", {}).get("type") == "sql":
        return "SQL filters"
    missing = {"tls": "TLS", "namespace": "namespaces", "delay_ms": "exact delays"}
    return next((what for name, what in missing.items() if job.get(name)), None)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job: Job = json.load(file)
    if missing := what_is_missing(job):
        tell("unsupported", why=f"this client has no {missing}")
        return
    try:
        SCENARIOS[job["scenario"]](job)
    except Exception as error:
        failed("", error)
    tell("done")
    os._exit(0)  # the library's threads crash when Python takes it down


if __name__ == "__main__":
    main()
