"""Brokers behind TLS: the right authority, the wrong one, a wrong name, TLS on one side only."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import Authority
from tests.support.service.fakes import a_view
from tests.support.spark.stub import Stub, a_stub, ok

from paceline.errors import BadRequestError, ForbiddenError, PeerError, UnauthenticatedError
from paceline.spark.brokers import Brokers
from paceline.spark.options import Access, read_options

LONG_MS = 60_000
"""Time to retry: what is said at once does not wait for it."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def node(authority: Authority) -> Iterator[Stub]:
    """A node that speaks TLS, for the name 127.0.0.1 alone."""
    files = authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with a_stub(context) as stub:
        stub.on["/v1/routes"] = lambda body: ok(a_view().to_json())
        yield stub


def access(stub: Stub, *, ca: str | None, timeout_ms: int = LONG_MS, **more: str) -> Access:
    """As the options say it."""
    given = {"endpoints": f"https://{stub.address}", "topic": "t", **more}
    given["retryTimeoutMs"] = str(timeout_ms)
    return read_options(given if ca is None else {**given, "tlsCa": ca}).access


def test_authority_that_signed_the_certificate_is_trusted(node: Stub, authority: Authority) -> None:
    with Brokers(access(node, ca=authority.path, token="secret")) as brokers:
        assert brokers.view().groups

    assert node.headers[-1]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("is_named", [True, False], ids=["another authority", "the system's"])
def test_certificate_of_a_stranger_is_refused_at_once(
    node: Stub, tmp_path: Path, is_named: bool
) -> None:
    other = Authority(tmp_path / "other").path if is_named else None

    with Brokers(access(node, ca=other)) as brokers, pytest.raises(BadRequestError) as refusal:
        brokers.view()

    assert refusal.value.details["field"] == "tlsCa"
    assert f"the certificate of {node.address} is not trusted" in refusal.value.message
    assert node.asked == []


def test_certificate_for_another_name_is_refused(node: Stub, authority: Authority) -> None:
    port = node.address.rpartition(":")[2]
    here = Access(endpoints=(f"localhost:{port}",), tls_ca=authority.path, is_tls=True)

    with Brokers(here) as brokers, pytest.raises(BadRequestError, match="not valid for"):
        brokers.view()

    assert node.asked == []


def test_node_without_tls_is_named() -> None:
    with a_stub() as plain:
        options = access(plain, ca=None)
        with Brokers(options) as brokers, pytest.raises(BadRequestError) as refusal:
            brokers.view()

    assert f"{plain.address} does not speak TLS" in refusal.value.message


def test_node_with_tls_that_is_asked_without_is_said_how_to_name(node: Stub) -> None:
    plain = Access(endpoints=(node.address,), retry_timeout_ms=0)

    with Brokers(plain) as brokers, pytest.raises(PeerError, match="named as https://"):
        brokers.view()


@pytest.mark.parametrize(("status", "error"), [(401, UnauthenticatedError), (403, ForbiddenError)])
def test_refusal_of_a_proxy_in_its_own_words_is_said_at_once(
    node: Stub, authority: Authority, status: int, error: type[Exception]
) -> None:
    node.on["/v1/routes"] = lambda body: (status, b"<html>no</html>")
    options = access(node, ca=authority.path, token="wrong")

    with Brokers(options) as brokers, pytest.raises(error, match="token or tokenFile"):
        brokers.view()

    assert len(node.asked) == 1


def test_a_certificate_of_the_client_is_shown_and_a_wrong_file_is_named(
    authority: Authority, tmp_path: Path
) -> None:
    files, own = authority.issue("127.0.0.1"), authority.issue("client", file="client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    with a_stub(context) as stub:
        stub.on["/v1/routes"] = lambda body: ok(a_view().to_json())
        shown = access(stub, ca=authority.path, tlsCert=own.certificate, tlsKey=own.key)
        with Brokers(shown) as brokers:
            assert brokers.view().groups
        without = access(stub, ca=authority.path, timeout_ms=0)
        with Brokers(without) as brokers, pytest.raises(PeerError):
            brokers.view()

        none = str(tmp_path / "none.pem")
        wrong = access(stub, ca=authority.path, tlsCert=none, tlsKey=own.key)
        with pytest.raises(BadRequestError, match=r"none\.pem and .* no readable certificate"):
            Brokers(wrong)
