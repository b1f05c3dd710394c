"""Places for connections: shares of addresses, and who goes to make room."""

from paceline.server.connections import Connection, Connections, ConnectionState


def opened(connections: Connections, address: str, count: int) -> list[Connection]:
    """So many more, each of which must get a place without costing another one's."""
    places = []
    for _ in range(count):
        place, displaced = connections.open(address)
        assert place is not None
        assert displaced is None
        places.append(place)
    return places


def test_one_address_gets_half_and_the_next_one_half_of_the_rest() -> None:
    connections = Connections(64)

    opened(connections, "10.0.0.1", 32)
    opened(connections, "10.0.0.2", 16)

    for address in ("10.0.0.1", "10.0.0.2"):
        assert connections.open(address)[1] is not None
    assert connections.count == 48


def test_beyond_its_share_an_address_loses_its_own_oldest_silent_connection() -> None:
    connections = Connections(8)
    asked, *silent = opened(connections, "10.0.0.1", 4)
    asked.is_now(ConnectionState.BUSY)
    asked.is_now(ConnectionState.IDLE)
    others = opened(connections, "10.0.0.2", 2)

    displaced = [connections.open("10.0.0.1")[1] for _ in range(5)]

    assert displaced[:3] == silent
    assert asked not in displaced
    assert not set(others) & set(displaced)
    assert (connections.count, connections.displaced) == (6, 5)


def test_the_longest_idle_goes_when_none_is_silent_and_the_busy_stay() -> None:
    connections = Connections(8)
    first, second, third, fourth = opened(connections, "10.0.0.1", 4)
    for place in (first, third, second, fourth):
        place.is_now(ConnectionState.BUSY)
    third.is_now(ConnectionState.IDLE)
    second.is_now(ConnectionState.IDLE)

    assert connections.open("10.0.0.1")[1] is third


def test_where_all_are_busy_a_new_connection_has_no_place() -> None:
    connections = Connections(8)
    for place in opened(connections, "10.0.0.1", 4):
        place.is_now(ConnectionState.BUSY)

    assert connections.open("10.0.0.1") == (None, None)
    assert connections.refused == 1
    assert connections.open("10.0.0.2")[0] is not None


def test_who_turns_out_to_be_busy_keeps_the_place() -> None:
    connections = Connections(8)
    places = opened(connections, "10.0.0.1", 4)
    for place in places:
        place.is_now(ConnectionState.IDLE)
    places[0].is_idle = lambda: False

    assert connections.open("10.0.0.1")[1] is places[1]
    assert places[0].standing is ConnectionState.BUSY


def test_one_of_many_addresses_takes_a_place_of_the_one_that_has_most() -> None:
    connections = Connections(16)
    opened(connections, "10.0.0.0", 8)
    for number in range(1, 5):
        opened(connections, f"10.0.0.{number}", 2)

    place, displaced = connections.open("10.0.1.1")

    assert place is not None
    assert displaced is not None
    assert connections.count == 16


def test_an_end_told_twice_frees_one_place() -> None:
    connections = Connections(8)
    place, other = opened(connections, "10.0.0.1", 2)
    place.ended()
    place.ended()

    assert connections.count == 1
    other.ended()
    assert connections.count == 0
    opened(connections, "10.0.0.1", 4)


def test_the_limit_is_never_passed() -> None:
    connections = Connections(100)
    for number in range(5000):
        connections.open(f"10.0.{number % 250}.{number % 7}")
        assert connections.count <= 100


def test_who_has_lost_the_place_gets_it_back_by_nothing() -> None:
    connections = Connections(8)
    (place,) = opened(connections, "10.0.0.1", 1)

    place.ended()
    place.is_now(ConnectionState.BUSY)
    place.is_now(ConnectionState.IDLE)

    assert connections.count == 0
    opened(connections, "10.0.0.1", 4)
    assert connections.open("10.0.0.1")[1] is not place
