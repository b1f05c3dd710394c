"""Tokens of logins: only nodes of the cluster make them, and what they say cannot be changed."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.security.tokens import LoginToken, read_token, write_token
from paceline.wire.users import LOGIN_PREFIX

SECRET = b"a secret of the cluster"
TOKENS = st.builds(
    LoginToken,
    st.from_regex(r"\A[A-Za-z0-9_.@-]{1,63}x\Z"),
    st.integers(0, 2**40),
    st.integers(0, 2**62),
    st.text("0123456789abcdef", min_size=12, max_size=12),
)


def read(access_key: str, secret_key: str, *secrets: bytes, cluster_id: str = "c") -> object:
    return read_token(access_key, secret_key, cluster_id=cluster_id, secrets=lambda: secrets)


@given(TOKENS)
def test_a_token_is_read_by_every_node_that_has_its_secret(token: LoginToken) -> None:
    shown = write_token(token, cluster_id="c", secrets=lambda: (SECRET, b"older"))

    assert read(*shown, SECRET) == token
    assert read(*shown, b"newer", SECRET) == token
    assert read(*shown, b"newer") is None
    assert read(*shown) is None
    assert read(*shown, SECRET, cluster_id="d") is None, "clusters may share a secret"


@given(TOKENS, st.integers(0, 10_000), st.characters(codec="ascii"))
def test_nothing_in_it_can_be_changed(token: LoginToken, at: int, other: str) -> None:
    access_key, secret_key = write_token(token, cluster_id="c", secrets=lambda: (SECRET,))
    text = f"{access_key}.{secret_key}"
    place = len(LOGIN_PREFIX) + at % (len(text) - len(LOGIN_PREFIX))
    changed = text[:place] + other + text[place + 1 :]

    if changed != text:
        assert read(*changed.partition(".")[::2], SECRET) is None


@given(st.text(), st.text())
def test_no_text_does_more_than_to_be_refused(access_key: str, secret_key: str) -> None:
    assert read(LOGIN_PREFIX + access_key, secret_key, SECRET) is None
    assert read(LOGIN_PREFIX + "x" * 1_000_000, secret_key, SECRET) is None
