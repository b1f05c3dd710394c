"""What topics and namespaces may keep: refusals store nothing, and who has less again goes on."""

from tests.support.http.door import a_batch
from tests.support.rights import a_security
from tests.support.service.fakes import Bench, a_view
from tests.support.service.send import Answers

from paceline.errors import PacelineError, StorageQuotaExceededError
from paceline.wire.stream import PRODUCE_FLAG_DUPLICATE, ProduceAnswer
from paceline.wire.users import Quota
from paceline_broker.projections.projections import Projections
from paceline_broker.service.produce.storage_quotas import RECOUNT_MS

TOPICS = {"orders": 4, "shop%a": 4, "shop%b": 4, "other%a": 4}
ORDERS, SHOP_A, SHOP_B, OTHER = 1, 2, 3, 4


def limited(**quotas: int) -> Bench:
    bench = Bench(is_automatic=False)
    bench.service.view_changed(a_view(version=2, topics=TOPICS))
    given = {subject: Quota(storage_bytes=limit) for subject, limit in quotas.items()}
    bench.service.access.apply(a_security().changed(quotas=given))
    return bench


def send(bench: Bench, topic_id: int, body: bytes = b"x" * 900) -> PacelineError | ProduceAnswer:
    sink = Answers()
    bench.service.sender.send(a_batch(body, topic_id=topic_id), sink, 1)
    bench.writer.confirm_all()
    answer: PacelineError | ProduceAnswer = sink.last
    return answer


def is_refused(answer: PacelineError | ProduceAnswer) -> bool:
    return isinstance(answer, StorageQuotaExceededError)


def kept(bench: Bench, topic_id: int) -> int:
    return bench.role.projections.consume_queues.topic_bytes(topic_id)


async def test_a_topic_takes_no_more_than_its_quota_and_others_go_on() -> None:
    bench = limited(**{"Topic:orders": 2500})
    assert not is_refused(send(bench, ORDERS))
    assert not is_refused(send(bench, ORDERS))
    end = bench.log.end

    refused = send(bench, ORDERS)

    assert isinstance(refused, StorageQuotaExceededError)
    assert refused.message.startswith(f"Topic:orders has {kept(bench, ORDERS)} bytes in broker")
    assert refused.is_definite
    assert bench.log.end == end, "nothing was stored"
    assert not is_refused(send(bench, ORDERS, b"small")), "what fits is taken"
    assert not is_refused(send(bench, SHOP_A))


async def test_a_namespace_has_one_quota_for_all_its_topics() -> None:
    bench = limited(**{"Namespace:shop": 3500, "Topic:shop%b": 100})

    answers = [send(bench, SHOP_A) for _ in range(4)]

    assert [is_refused(answer) for answer in answers] == [False, False, False, True]
    assert is_refused(send(bench, SHOP_B)), "its own quota counts besides"
    assert not is_refused(send(bench, OTHER))
    assert not is_refused(send(bench, ORDERS))


async def test_what_is_deleted_is_room_again() -> None:
    bench = limited(**{"Topic:orders": 2500, "Namespace:shop": 2500})
    for topic_id in (ORDERS, SHOP_A):
        send(bench, topic_id)
        send(bench, topic_id)
        assert is_refused(send(bench, topic_id))

    bench.role.projections.consume_queues.drop_below(bench.log.end)

    assert kept(bench, ORDERS) == 0
    assert not is_refused(send(bench, ORDERS))
    assert is_refused(send(bench, SHOP_A)), "of a namespace it is noticed at the next count"
    bench.clock.advance(RECOUNT_MS)
    assert not is_refused(send(bench, SHOP_A))


async def test_a_repetition_of_what_is_stored_is_answered_as_such() -> None:
    bench, sink = limited(**{"Topic:orders": 1100}), Answers()
    batch = a_batch(b"x" * 900, topic_id=ORDERS, producer_id=7, producer_epoch=0, base_sequence=0)
    bench.service.sender.send(batch, sink, 1)
    assert is_refused(send(bench, ORDERS))

    bench.service.sender.send(batch, sink, 2)
    bench.writer.confirm_all()

    assert isinstance(sink.last, ProduceAnswer)
    assert sink.last.flags & PRODUCE_FLAG_DUPLICATE


async def test_whoever_has_the_log_or_its_checkpoint_knows_the_sizes() -> None:
    bench = limited()
    for topic_id in (ORDERS, SHOP_A, ORDERS):
        send(bench, topic_id)
    folded = Projections()
    for view in bench.log.views():
        folded.apply(view.header, view)
    restored = Projections.restore(folded.snapshot())

    for projections in (folded, restored):
        queues = projections.consume_queues
        assert queues.topic_bytes(ORDERS) == kept(bench, ORDERS) > 2 * 900
        assert queues.topic_bytes(SHOP_A) == kept(bench, SHOP_A) > 900
    assert restored.consume_queues.topic_bytes(OTHER) == 0


async def test_a_quota_that_is_changed_or_taken_away_counts_at_once() -> None:
    bench = limited(**{"Topic:orders": 1})
    access = bench.service.access
    assert is_refused(send(bench, ORDERS))

    access.apply(access.security.changed(quotas={"Topic:orders": Quota(storage_bytes=10_000)}))
    assert not is_refused(send(bench, ORDERS))
    access.apply(access.security.changed(quotas={}))

    assert not bench.service.sender._storage.limits
    assert all(not is_refused(send(bench, ORDERS)) for _ in range(12))
