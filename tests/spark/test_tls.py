"""Source, stream, sink and export over https, with right and wrong authorities and credentials."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.exports import bodies_in, export
from tests.spark.tls_front import TOKEN, Front, a_front
from tests.spark.topics import Topics
from tests.support.certificates import Authority

from paceline.errors import BadRequestError, PacelineError, UnauthenticatedError
from paceline.spark.session import plain_error

COUNT = 500


@pytest.fixture(scope="module")
def front(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with a_front(topics.cluster, tmp_path_factory.mktemp("front")) as front:
        yield front


@pytest.fixture(scope="module")
def options(front: Front, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """How it is reached as it should be."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    return {"endpoints": front.endpoints, "tlsCa": front.authority, "tokenFile": str(token)}


@pytest.fixture(scope="module")
def filled(topics: Topics) -> tuple[str, list[str]]:
    topic = topics.make("tls")
    return topic, topics.fill(topic, COUNT)


def test_rows_go_through_tls_both_ways(
    spark: Any,
    topics: Topics,
    front: Front,
    options: dict[str, str],
    filled: tuple[str, list[str]],
    tmp_path: Path,
) -> None:
    (source, bodies), target = filled, topics.make("tls-copy")
    front.passed.clear()

    frame = spark.read.format("paceline").options(topic=source, **options).load()
    frame.select("body", "key").write.format("paceline").options(topic=target, **options).mode(
        "append"
    ).save()
    done = export(spark, topics, target, tmp_path / "out", is_verify=True, options=options)

    assert (done["rows"], done["faults"], done["compared_rows"]) == (COUNT, [], COUNT)
    assert bodies_in(tmp_path / "out") == Counter(bodies)
    paths = Counter(path.partition("/queues")[0] for _, path in front.passed)
    assert paths["/v1/fetch"] >= 2
    assert paths[f"/v1/topics/{target}"] >= 4


def read(spark: Any, topic: str, options: dict[str, str], folder: Path) -> None:
    spark.read.format("paceline").options(topic=topic, **options).load().count()


def stream(spark: Any, topic: str, options: dict[str, str], folder: Path) -> None:
    query = (
        spark.readStream.format("paceline")
        .options(topic=topic, **options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)


def write(spark: Any, topic: str, options: dict[str, str], folder: Path) -> None:
    writer = spark.range(10).selectExpr("cast(id as string) as body").write.format("paceline")
    writer.options(topic=topic, **options).mode("append").save()


@pytest.mark.parametrize("way", [read, stream, write])
@pytest.mark.parametrize(
    ("what", "error", "sentence"),
    [
        ("authority", BadRequestError, "is not trusted: unable to get local issuer certificate"),
        ("token", UnauthenticatedError, "token or tokenFile were refused: no such token"),
    ],
)
def test_wrong_authority_and_wrong_token_are_said_at_once(
    spark: Any,
    front: Front,
    options: dict[str, str],
    filled: tuple[str, list[str]],
    tmp_path: Path,
    way: Callable[..., None],
    what: str,
    error: type[PacelineError],
    sentence: str,
) -> None:
    """`retryTimeoutMs` is a minute: an error that no time heals does not wait for it."""
    wrong = dict(options)
    if what == "authority":
        wrong["tlsCa"] = Authority(tmp_path / "other").path
    else:
        del wrong["tokenFile"]
        wrong["token"] = "not-" + TOKEN
    front.passed.clear()

    with pytest.raises(Exception) as refusal:  # noqa: PT011 - Spark wraps it; judged below
        way(spark, filled[0], wrong, tmp_path)

    found = plain_error(refusal.value)
    assert isinstance(found, error)
    assert sentence in found.message
    assert front.passed == []
