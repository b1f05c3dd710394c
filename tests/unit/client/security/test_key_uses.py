"""When access keys were used: told once an hour, by whoever has seen it."""

from paceline.platform.runtime import ManualClock
from paceline.security.key_uses import GRANULARITY_MS, KeyUses
from paceline.wire.session import KEY_USES_MAX


def told(uses: KeyUses) -> dict[str, int]:
    due = uses.due()
    uses.told(due)
    return due


def test_a_use_is_told_once_an_hour() -> None:
    clock = ManualClock()
    uses, began = KeyUses(clock.unix_ms), clock.unix_ms()
    for _ in range(1_000):
        uses.used("key-ana")
    assert told(uses) == {"key-ana": began}
    assert told(uses) == {}

    clock.advance(GRANULARITY_MS - 1)
    uses.used("key-ana")
    assert told(uses) == {}
    clock.advance(1)
    uses.used("key-ana")
    assert uses.due() == uses.due() == {"key-ana": began + GRANULARITY_MS}, "until it was told"


def test_what_others_have_told_does_not_go_back() -> None:
    clock = ManualClock()
    uses, now_unix_ms = KeyUses(clock.unix_ms), clock.unix_ms()
    clock.advance(5)
    uses.heard({"key-ana": now_unix_ms + 5, "key-bob": now_unix_ms})
    uses.heard({"key-ana": now_unix_ms + 1})

    assert told(uses) == {"key-ana": now_unix_ms + 5, "key-bob": now_unix_ms}


def test_a_clock_that_was_ahead_does_not_hide_uses() -> None:
    """That of another node, or the own one."""
    now = [1_700_000_000_000]
    uses, year_ms = KeyUses(lambda: now[0]), 365 * 24 * GRANULARITY_MS
    uses.heard({"key-ana": now[0] + year_ms})
    assert told(uses) == {"key-ana": now[0]}
    now[0] += year_ms
    uses.used("key-bob")
    told(uses)

    now[0] -= year_ms - GRANULARITY_MS
    for key in ("key-ana", "key-bob"):
        uses.used(key)
    assert told(uses) == {"key-ana": now[0], "key-bob": now[0]}
    uses.used("key-bob")
    assert told(uses) == {}


def test_messages_are_bounded_and_revoked_keys_forgotten() -> None:
    uses = KeyUses(ManualClock().unix_ms)
    for number in range(2 * KEY_USES_MAX + 1):
        uses.used(f"key-{number}")
    assert [len(told(uses)) for _ in range(4)] == [KEY_USES_MAX, KEY_USES_MAX, 1, 0]

    uses.used("key-ana")
    uses.keep_only({"key-bob"})
    assert uses.due() == {}
