"""A view concerns those clients whose group or topics it says something else of."""

from collections import Counter

from paceline_gateway.connected_clients import ClientKey
from paceline_gateway.grpc.service.concerned import Concerned

A, B, C = (ClientKey("anna", name) for name in "abc")


class View:
    """What it says, and how often it was asked."""

    def __init__(self) -> None:
        self.groups: dict[str, str] = {}
        self.topics: dict[str, str] = {}
        self.asked: Counter[str] = Counter()

    def group(self, name: str) -> str | None:
        self.asked[name] += 1
        return self.groups.get(name)


def test_whoever_works_by_what_has_changed_is_concerned_once() -> None:
    view = View()
    concerned: Concerned[ClientKey] = Concerned(view.group, view.topics.get)
    concerned.put(A, "work", ["orders", "orders"])
    concerned.put(B, "work", ["money"])
    concerned.put(C, None, ["orders"])

    assert concerned.changed() == []
    view.groups["work"] = "ordered"
    view.topics["money"] = "TRANSACTION"
    assert concerned.changed() == [A, B]
    view.topics["orders"] = "NORMAL"
    assert concerned.changed() == [A, C]
    assert concerned.changed() == []


def test_what_a_client_worked_by_before_concerns_it_no_more() -> None:
    view = View()
    concerned: Concerned[ClientKey] = Concerned(view.group, view.topics.get)
    concerned.put(A, "work", ["orders"])
    concerned.put(A, "play", [])
    concerned.put(B, "work", ["orders"])
    for _ in range(2):
        concerned.drop(B)

    view.groups = {"work": "x", "play": "y"}
    view.topics["orders"] = "z"

    assert concerned.changed() == [A]
    concerned.drop(A)
    assert not concerned._groups._seen
    assert not concerned._topics._clients


def test_a_view_costs_one_look_for_each_group_not_for_each_client() -> None:
    view = View()
    concerned: Concerned[ClientKey] = Concerned(view.group, view.topics.get)
    for number in range(1_000):
        concerned.put(ClientKey("anna", str(number)), "work", [])
    view.asked.clear()

    concerned.changed()

    assert view.asked == {"work": 1}
