"""From the loop's thread to the consumers'."""

import select
import threading

from paceline.kombu.inbox import Delivery, Inbox
from paceline.kombu.receiving import Room


def nothing() -> None:
    pass


def a_delivery(queue: str = "q") -> Delivery:
    return Delivery(
        queue=queue,
        payload={},
        ack=nothing,
        requeue=nothing,
        reject=nothing,
        give_back=nothing,
        is_redelivered=False,
    )


def is_readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox.fd], [], [], 0)[0])


def test_the_file_is_readable_while_there_is_something() -> None:
    inbox = Inbox()
    told = [is_readable(inbox)]
    for _ in range(2):
        inbox.put(a_delivery())
    told.append(is_readable(inbox))
    inbox.take()
    told.append(is_readable(inbox))
    inbox.take()
    told.append(is_readable(inbox))
    inbox.close()

    assert told == [False, True, True, False]


def test_a_waiting_thread_is_woken() -> None:
    inbox = Inbox()
    assert not inbox.wait(0)
    threading.Timer(0, lambda: inbox.put(a_delivery("late"))).start()

    assert inbox.wait(20)
    found = inbox.take()
    assert found is not None
    assert found.queue == "late"
    assert inbox.take() is None
    inbox.close()


def test_a_closed_one_says_what_is_left_and_takes_nothing() -> None:
    inbox = Inbox()
    inbox.put(a_delivery())

    assert len(inbox.close()) == 1
    assert not inbox.put(a_delivery())
    assert inbox.close() == []


def test_what_is_there_of_one_queue_is_taken_out() -> None:
    inbox = Inbox()
    for queue in ("a", "b", "a"):
        inbox.put(a_delivery(queue))

    assert [one.queue for one in inbox.remove("a")] == ["a", "a"]
    assert is_readable(inbox)
    assert [one.queue for one in inbox.remove("b")] == ["b"]
    assert not is_readable(inbox)
    inbox.close()


def test_room_is_what_the_prefetch_count_leaves() -> None:
    inbox = Inbox()
    room = Room(inbox)
    free = [room.free()]
    room.limit(3)
    free.append(room.free())
    room.take(3)
    free.append(room.free())
    room.release()
    free.append(room.free())
    inbox.close()

    assert free == [32, 3, 0, 1]
