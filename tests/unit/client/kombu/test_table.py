"""Which of several messages of one key counts."""

from types import SimpleNamespace
from typing import cast

import pytest

from paceline.errors import NotAuthorizedError
from paceline.kombu import table
from paceline.kombu.session import Clients
from paceline.kombu.table import FORGOTTEN, Entry, ResultTable, _later
from paceline.net.cluster import Cluster
from paceline.wire.cluster import ClusterView


async def test_a_user_who_may_not_see_the_results_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("127.0.0.1:1")

    async def refused(request: object) -> None:
        raise NotAuthorizedError("ana may not Sub on Topic:celery-results")

    async def there(self: ResultTable) -> None: ...

    monkeypatch.setattr(cluster, "check_visible", refused)
    monkeypatch.setattr(ResultTable, "_declare", there)
    monkeypatch.setattr(table, "_CALL_TIMEOUT_MS", 1)
    cluster.watch.apply(ClusterView(cluster_id="c", version=1))
    clients = cast(Clients, SimpleNamespace(cluster=cluster, view=cluster.view))
    results = ResultTable(clients, "celery-results", expires_ms=None, on_stored=lambda *_: None)
    try:
        with pytest.raises(NotAuthorizedError, match="celery-results"):
            await results.get(["a-task"])
    finally:
        await results.close()
        await cluster.close()


def an_entry(tag: str, offset: int) -> Entry:
    return Entry(value=b"", tag=tag, stored_unix_ms=0, offset=offset)


@pytest.mark.parametrize(
    ("tags", "offset"),
    [
        (["STARTED", "SUCCESS"], 1),
        (["SUCCESS", "STARTED"], 0),
        (["SUCCESS", "FAILURE"], 0),
        (["FAILURE", "SUCCESS"], 1),
        (["SUCCESS", FORGOTTEN], 1),
        (["SUCCESS", FORGOTTEN, "STARTED"], 2),
        (["", ""], 1),
    ],
)
def test_the_last_one_counts_but_a_success_stays(tags: list[str], offset: int) -> None:
    found: Entry | None = None
    for number, tag in enumerate(tags):
        found = _later(found, an_entry(tag, number))

    assert found is not None
    assert found.offset == offset
