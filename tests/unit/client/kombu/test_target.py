"""URLs of brokers and result backends."""

import pytest

from paceline.errors import ConfigError
from paceline.kombu.target import connect_settings_of, masked
from paceline.net.connect import ClientTls, ConnectSettings, Credentials, TokenFile


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("paceline://h1:1,h2:2", ConnectSettings("h1:1,h2:2")),
        ("paceline://h1:1/shop", ConnectSettings("h1:1", namespace="shop")),
        (
            "paceline://key:se%2Fcret@h1:1,h2:2/shop?tls_ca=/ca.pem&allow_plaintext=1",
            ConnectSettings(
                "h1:1,h2:2",
                credentials=Credentials(
                    access_key="key", secret_key="se/cret", allow_plaintext=True
                ),
                tls=ClientTls(ca_file="/ca.pem"),
                namespace="shop",
            ),
        ),
        (
            "paceline://h1:1?token_file=/token",
            ConnectSettings("h1:1", credentials=TokenFile(path="/token")),
        ),
    ],
)
def test_a_url_says_where_and_as_whom(url: str, settings: ConnectSettings) -> None:
    assert connect_settings_of(url) == settings


@pytest.mark.parametrize(
    ("url", "about"),
    [
        ("redis://h1:1", "begins with paceline://"),
        ("paceline:///shop", "needs host:port"),
        ("paceline://key@h1:1", "go together"),
        ("paceline://h1:1?tls=1", "has no tls"),
        ("paceline://key:secret@h1:1?token_file=/t", "not both"),
    ],
)
def test_a_wrong_url_is_told(url: str, about: str) -> None:
    with pytest.raises(ConfigError, match=about):
        connect_settings_of(url)


def test_a_url_is_shown_without_its_secret() -> None:
    assert masked("paceline://key:secret@h1:1,h2:2/n") == "paceline://key:**@h1:1,h2:2/n"
    assert masked("paceline://h1:1/n") == "paceline://h1:1/n"
