"""Secret keys that can be read back: by nodes of the cluster, and for the key they belong to."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.platform.runtime import SystemRandom
from paceline.security.sealed_keys import is_current, open_key, seal_key

OLD, NEW = b"the old secret of the cluster", b"the new secret of the cluster"
SECRET_KEY = "sk_secret-of-ana-0123456789"


def seal(*secrets: bytes) -> str:
    return seal_key(
        SECRET_KEY, access_key="key-ana", cluster_id="c", secrets=secrets, random=SystemRandom()
    )


def opened(
    sealed: str, *secrets: bytes, access_key: str = "key-ana", cluster_id: str = "c"
) -> str | None:
    return open_key(sealed, access_key=access_key, cluster_id=cluster_id, secrets=secrets)


def test_a_key_is_opened_by_the_secret_that_it_was_sealed_with() -> None:
    sealed = seal(OLD)

    assert SECRET_KEY not in sealed
    assert opened(sealed, OLD) == opened(sealed, NEW, OLD) == SECRET_KEY
    assert opened(sealed, NEW) is None
    assert opened(sealed) is None
    assert opened(sealed, OLD, access_key="key-bob") is None, "nobody puts it to another key"
    assert opened(sealed, OLD, cluster_id="d") is None
    assert (is_current(sealed, [OLD, NEW]), is_current(sealed, [NEW, OLD])) == (True, False)
    assert seal(OLD) != sealed, "each with its own nonce"


@given(st.text() | st.binary().map(lambda raw: raw.hex()))
def test_nothing_else_opens(content: str) -> None:
    name = seal(OLD).partition(":")[0]

    assert opened(content, OLD) is None
    assert opened(f"{name}:{content}", OLD) is None


@given(st.integers(0, 10_000), st.characters(codec="ascii"))
def test_a_changed_one_opens_to_nothing_else(at: int, other: str) -> None:
    sealed = seal(OLD)
    place = at % len(sealed)
    changed = sealed[:place] + other + sealed[place + 1 :]

    # The last character of base64 has bits that mean nothing.
    assert opened(changed, OLD) in (None, SECRET_KEY)
