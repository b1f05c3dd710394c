"""Pure: what a producer holds for a logical queue goes on to its next segment, in order (R32).

The outbox of the old segment sends nothing new. What it has under way is answered there: with its
offset, or by the definite refusal of a sealed queue. Not before all of it is answered the rest goes
over, in front of whatever was accepted for the new segment since: so nothing overtakes a batch that
may yet turn out to be unsent. Segments may follow faster than answers: then the outboxes form a
line, and each waits for the one before it.
"""

from paceline.producer.queue_buffer import QueueBuffer


def lead_on(old: QueueBuffer, new: QueueBuffer) -> None:
    """The logical queue of `old` goes on in `new`, which is fresh."""
    assert new.is_idle
    old.is_retired = old.is_closed = True
    old.successor = new
    new.is_closed = new.is_behind = True


def hand_on(outbox: QueueBuffer) -> QueueBuffer | None:
    """Give what is left to the next segment, if all else is answered; who may send now."""
    found = None
    while (new := outbox.successor) is not None and not outbox.pending and not outbox.is_behind:
        new.take_over(outbox.take_unsent())
        outbox.successor = None
        new.is_behind = False
        new.is_closed = new.successor is not None
        outbox = found = new
    return found
