"""Views of users: made once for each version and user, and bounded in memory."""

from dataclasses import replace

import orjson
import pytest
from tests.support.rights import a_security, entry
from tests.support.service.fakes import a_view

from paceline.platform.runtime import ManualClock
from paceline.security import visible as module
from paceline.security.access import Access, Asker
from paceline.security.identity import Principal
from paceline.security.visible import VisibleViews, visible
from paceline.wire.rights import SUB
from paceline.wire.users import PolicyEntry

VIEW = a_view(version=2, topics={"orders": 4, "shop%a": 4, "shop%b": 4})


def an_access(*ana: PolicyEntry) -> Access:
    access = Access(ManualClock())
    access.apply(a_security(ana=ana or (entry("Topic:orders", SUB),)))
    return access


def asker(
    access: Access, user: str = "ana", source: str = "10.0.0.1", namespace: str = ""
) -> Asker:
    return Asker(access, Principal(user, source)._replace(namespace=namespace))


def names(document: object) -> set[str]:
    rows = orjson.loads(orjson.dumps(document))["topics"]
    return {name for name in VIEW.topics if name in orjson.dumps(rows).decode()}


def test_it_is_the_view_with_what_the_asker_may_see() -> None:
    ana = asker(an_access(), namespace="shop")
    found = orjson.loads(orjson.dumps(VisibleViews().document(ana, VIEW)))

    assert found == orjson.loads(orjson.dumps(visible(ana, VIEW).to_json()))
    assert found["namespace"] == "shop"
    assert names(found) == {"orders"}


def test_it_is_made_once_for_each_version_of_the_view_and_of_rights() -> None:
    access, views = an_access(), VisibleViews()
    ana = asker(access)
    first = views.document(ana, VIEW)

    assert views.document(ana, replace(VIEW)) is first
    assert views.document(asker(access, source="10.0.0.2"), VIEW) is first, "no policy asks where"
    assert views.document(asker(access, namespace="shop"), VIEW) is not first
    newer = replace(VIEW, version=3, topics={})
    assert names(views.document(ana, newer)) == set()
    assert names(views.document(ana, VIEW)) == {"orders"}
    policy = {"ana": a_security(ana=(entry("Topic:shop%*", SUB),)).policies["ana"]}
    access.apply(access.security.changed(policies=policy))
    assert names(views.document(ana, VIEW)) == {"shop%a", "shop%b"}


def test_where_a_policy_asks_for_the_address_each_has_its_own() -> None:
    here = replace_sources(entry("Topic:orders", SUB), "10.0.0.1")
    access, views = an_access(here), VisibleViews()

    assert names(views.document(asker(access), VIEW)) == {"orders"}
    assert names(views.document(asker(access, source="10.0.0.2"), VIEW)) == set()


def test_texts_of_many_users_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    access, views = an_access(), VisibleViews()
    first = views.document(asker(access, namespace="n0"), VIEW)
    size = views._kept_bytes
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 10 * size)
    for number in range(1, 100):
        views.document(asker(access, namespace=f"n{number}"), VIEW)
        assert views.document(asker(access, namespace="n0"), VIEW) is first, "it is asked for"

    assert len(views._kept) == 10
    assert views._kept_bytes == 10 * size


def replace_sources(one: PolicyEntry, source: str) -> PolicyEntry:
    return PolicyEntry(resource=one.resource, actions=one.actions, sources=(source,))
