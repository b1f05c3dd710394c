"""Offsets of a streaming query, shown to lag tools as those of a consumer group.

Spark's checkpoint alone decides where a query goes on; these are never read back. A restart from an
older checkpoint would move them back, which a commit refuses: lag then shows too little until the
query has caught up, and nothing else is wrong.
"""

import logging

from paceline.errors import OffsetMovedBackError, PacelineError
from paceline.spark.brokers import Brokers
from paceline.spark.offsets import Offsets
from paceline.spark.options import ReadOptions
from paceline.types import TopicName
from paceline.wire.calls.offsets import Commit, CommitRow

log = logging.getLogger("paceline.spark")


def commit_for_lag(options: ReadOptions, offsets: Offsets) -> None:
    """Commit `offsets` for the group of option `consumerGroup`; a failure is logged, not raised."""
    assert options.consumer_group is not None
    with Brokers(options.access) as brokers:
        view = brokers.view()
        for group in sorted({queue.group for queue in offsets}):
            rows = [
                CommitRow(
                    topic_id=view.topics[TopicName(queue.topic)].topic_id,
                    queue=queue.queue,
                    offset=offset,
                )
                for queue, offset in sorted(offsets.items())
                if queue.group == group and queue.topic in view.topics
            ]
            if not rows:
                continue
            request = Commit(group=options.consumer_group, offsets=rows)
            try:
                brokers.call(group, request.to_json(), is_of_master=True)
            except OffsetMovedBackError:
                log.info("lag_is_ahead", extra={"group": options.consumer_group})
            except PacelineError as error:
                # The micro-batch is done whether or not a lag tool can see it.
                log.warning("lag_not_told", extra={"reason": error.message})
