"""Pure: names of kombu's queues and exchanges as names of topics, and back.

A topic's name is 1 to 127 of A-Z a-z 0-9 . _ - with its namespace, a queue's is any text. What a
topic's name cannot hold is written as `_.` and two hexadecimal digits of each byte of UTF-8; so is
the `_` of a `_.` that the queue's name has itself. Most names stay as they are. The exchange `name`
has the topic `name_.x`, which cannot be the name of a queue, as `x` is no digit.

What would be longer than `LENGTH_MAX` is cut, and ends in `_.h` and a digest: the topic's attribute
has the whole name (`bindings`).
"""

import hashlib
import re

LENGTH_MAX = 60
"""Beside a namespace of 63, "%", and what stands behind a name."""
_DIGEST_LENGTH = 24
_ESCAPE = "_."
_PLAIN = re.compile(r"[A-Za-z0-9._-]")
_ESCAPED = re.compile(r"_\.([0-9a-f]{2})")
_RESERVED = frozenset(
    {
        "TBW102",
        "BenchmarkTest",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "paceline_REPLY_TOPIC",
    }
)


def topic_of_queue(queue: str) -> str:
    """The topic of a queue, which is also the name of the consumer group that its consumers are."""
    return escaped(queue)


def topic_of_exchange(exchange: str) -> str:
    """The topic that an exchange fans out by."""
    return f"{escaped(exchange)}{_ESCAPE}x"


def escaped(name: str) -> str:
    """1 to `LENGTH_MAX` characters that a topic's name may hold; `unescaped` undoes it."""
    raw = name.encode()
    is_reserved = name in _RESERVED or name.startswith(("SCHEDULE_TOPIC", "RMQ_SYS_", "rmq_sys_"))
    parts: list[str] = []
    for index, byte in enumerate(raw):
        text = chr(byte)
        is_edge_dot = text == "." and index in (0, len(raw) - 1)
        is_escape = text == "_" and raw[index + 1 : index + 2] == b"."
        is_plain = byte < 128 and _PLAIN.match(text) is not None
        if not is_plain or is_edge_dot or is_escape or (is_reserved and index == 0):
            text = f"{_ESCAPE}{byte:02x}"
        parts.append(text)
    found = "".join(parts)
    if len(found) <= LENGTH_MAX and found:
        return found
    digest = hashlib.sha256(raw).hexdigest()[:_DIGEST_LENGTH]
    head = found[: LENGTH_MAX - _DIGEST_LENGTH - 3].rstrip("_.")
    return f"{head}{_ESCAPE}h{digest}"


def unescaped(topic: str) -> str:
    """The name of which `escaped` made a name that it did not have to cut."""
    raw = bytearray()
    at = 0
    while at < len(topic):
        match = _ESCAPED.match(topic, at)
        if match is None:
            raw += topic[at].encode()
            at += 1
        else:
            raw.append(int(match[1], 16))
            at = match.end()
    return raw.decode()
