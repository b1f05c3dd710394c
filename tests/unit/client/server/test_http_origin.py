"""Which requests a web page may have caused."""

import pytest

from paceline.errors import ForbiddenError
from paceline.server.http_origin import check_browser, own_hosts

OWN = own_hosts("broker-1.example.org", allowed=("mq.example.com",))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:7700",
        "10.1.2.3",
        "[::1]:7700",
        "[fe80::1]",
        "localhost:7700",
        "broker-1",
        "x",
        "controller-0.paceline.svc.cluster.local:7700",
        "mq.internal",
        "broker-1.example.org:7706",
        "BROKER-1.example.org.:7706",
        "mq.example.com",
        None,
    ],
)
def test_addresses_own_names_and_names_nobody_can_register_are_taken(host: str | None) -> None:
    check_browser(host=host, origin=None, site=None, own=OWN)


@pytest.mark.parametrize(
    "host", ["rebound.example.net", "rebound.example.net:7700", "127.0.0.1.example.net", "a..b"]
)
def test_a_name_that_somebody_else_may_have_registered_is_refused(host: str) -> None:
    with pytest.raises(ForbiddenError, match="allowed_hosts"):
        check_browser(host=host, origin=None, site=None, own=OWN)

    check_browser(host=host, origin=None, site=None, own=own_hosts(allowed=("*",)))


@pytest.mark.parametrize("origin", ["http://evil.example.net", "null", "http://127.0.0.1:7700", ""])
def test_a_request_of_a_page_is_refused_whatever_page_it_is(origin: str) -> None:
    with pytest.raises(ForbiddenError, match="web pages"):
        check_browser(host="127.0.0.1:7700", origin=origin, site=None, own=OWN)


@pytest.mark.parametrize("site", [None, "none", "same-origin"])
def test_what_programs_and_people_ask_is_taken(site: str | None) -> None:
    check_browser(host="127.0.0.1:7700", origin=None, site=site, own=OWN)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "anything"])
def test_what_the_page_of_another_site_has_caused_is_refused(site: str) -> None:
    with pytest.raises(ForbiddenError) as refused:
        check_browser(host="127.0.0.1:7700", origin=None, site=site, own=OWN)
    assert refused.value.details == {"field": "Sec-Fetch-Site"}
