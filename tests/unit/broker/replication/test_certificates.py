"""By TLS a node is whom its certificate names, whatever it proves and claims besides."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.replication.builders import a_view
from tests.support.replication.nodes import MasterNode, ReplicaNode, eventually, node_tls

from paceline.errors import PeerError
from paceline.platform.runtime import SystemClock
from paceline.security.authority import Authority
from paceline.security.certificates import check_broker, check_controller
from paceline.security.node_tls import Dial


@pytest.mark.parametrize(
    ("of_master", "of_replica", "refuses"),
    [
        ("URI:paceline:broker/g1", "URI:paceline:broker/g1", None),
        ("URI:paceline:broker/g1/1", "URI:paceline:broker/g1/2", None),
        ("URI:paceline:broker/g1", "URI:paceline:broker/g2", "it is broker g1/2, .* names g2:"),
        ("URI:paceline:broker/g1", "URI:paceline:broker/g1/3", "broker g1/2, .* names g1/3:"),
        ("URI:paceline:broker/g1", "URI:paceline:controller/g1", "g1/2, .* names no such node"),
        ("URI:paceline:broker/g2", "URI:paceline:broker/g1", "it is broker g1/1, .* names g2:"),
        ("URI:paceline:broker/g1/2", "URI:paceline:broker/g1", "broker g1/1, .* names g1/2:"),
    ],
)
async def test_a_replica_follows_only_where_both_certificates_are_right(
    tmp_path: Path,
    of_master: str,
    of_replica: str,
    refuses: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path)
    authority.init(common_name="test", now_unix_ms=SystemClock().unix_ms())
    master, replica = MasterNode(), ReplicaNode(2)
    await master.start(tls=node_tls(authority, "master", of_master))
    try:
        master.lead(a_view(sync_state_set=frozenset({1, 2})))
        replica.follow(master.port, dial=Dial(node_tls(authority, "replica", of_replica)))
        if refuses is None:
            await eventually(lambda: master.is_opened)
            return
        await eventually(lambda: bool(reasons(caplog)))
        assert not master.is_opened
        with pytest.raises(PeerError, match=refuses):
            raise PeerError(reasons(caplog)[0])
    finally:
        assert replica.client is not None
        await replica.client.stop()
        await master.server.stop()


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the two sides say of a certificate."""
    found = [vars(record).get("fault") or vars(record).get("reason") for record in caplog.records]
    return [why for why in found if isinstance(why, str) and "certificate names" in why]


class Connection:
    def __init__(self, *uris: str, is_tls: bool = True) -> None:
        self._extra: dict[str, Any] = {
            "ssl_object": object() if is_tls else None,
            "peercert": {"subjectAltName": tuple(("URI", uri) for uri in uris)},
        }

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)


def test_a_broker_that_has_no_id_yet_is_one_of_its_group() -> None:
    check_broker(Connection("paceline:broker/g1/3"), group="g1", replica_id=None)
    check_broker(Connection("paceline:broker/g1"), group="g1", replica_id=None)
    for other in ("paceline:broker/g10/3", "paceline:broker/g", "paceline:client/g1", "g1"):
        with pytest.raises(PeerError, match="broker g1"):
            check_broker(Connection(other), group="g1", replica_id=None)


def test_a_controller_is_the_one_that_it_says() -> None:
    check_controller(Connection("paceline:broker/g1", "paceline:controller/c1"), "c1")
    check_controller(Connection(is_tls=False), "c1")
    for other in ("paceline:controller/c2", "paceline:controller/c11", "paceline:broker/c1"):
        with pytest.raises(PeerError, match="controller c1, .* URI:paceline:controller/c1"):
            check_controller(Connection(other), "c1")


def test_without_tls_nobody_shows_a_certificate() -> None:
    check_broker(Connection(is_tls=False), group="g1", replica_id=None)
