"""The page: it stands by itself, says what broke, and takes any history."""

import re
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest
from tests.unit.chaos.report.histories import Maker, eventful

from paceline_chaos.checkers.expectations import longest_gap
from paceline_chaos.history.decided import decided
from paceline_chaos.history.model import History, Outcome, Phase, Queue, Stall
from paceline_chaos.report.page import page_of
from paceline_chaos.report.write import write_report
from paceline_chaos.verdict import Verdict, Violation

GOOD = Verdict(violations=(), counters={"operations": 3})
EVIL = "<script>alert('1')</script>&\""


def picture(page: str) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", page, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found.group())


def rates(page: str) -> dict[str, list[int]]:
    found = re.search(r'id="rates">(.*?)</script>', page)
    assert found is not None
    figures: dict[str, list[int]] = orjson.loads(found.group(1))
    return figures


def texts(page: str) -> list[str]:
    return [element.text or "" for element in picture(page).iter("text")]


def test_report_is_one_file_in_a_folder_that_it_makes(tmp_path: Path) -> None:
    written = write_report(Maker().history(), GOOD, tmp_path / "new" / "report.html")

    assert written.read_text().startswith("<!doctype html>")


def test_report_of_an_empty_history_says_that_nothing_is_wrong() -> None:
    page = page_of(History(world={}), Verdict(violations=(), counters={}))

    assert "No violation" in page
    assert picture(page).tag == "svg"


def test_gap_and_elections_of_the_page_are_those_of_the_verdict() -> None:
    maker = Maker(groups=2)
    maker.add(Phase, at_us=0, name="load")
    for index, reason in enumerate(("first", "settings", "master is gone"), start=1):
        fields = {"group": "g1", "master": index, "master_epoch": index, "sync_state_set": [1, 2]}
        maker.decide(index, "master_elected", index, **fields, reason=reason)
    for at_ms in range(0, 3_000, 100):
        maker.send("client-1", at_ms, queue=Queue("orders", "g1", 0))
    for at_ms in (0, 2_900):  # of the other group nothing was acknowledged meanwhile
        maker.send("client-2", at_ms, queue=Queue("orders", "g2", 0))
    maker.add(Stall, at_us=1_000_000, for_us=500_000)
    history = maker.history()

    page = page_of(history, GOOD)

    assert tile(page, "longest gap") == "2.40 s"
    assert longest_gap(history).own_ms == 2_400
    assert tile(page, "elections") == "1" == str(decided(history.entries).elections)


def tile(page: str, name: str) -> str:
    found = re.search(rf"<b>([^<]*)</b><span>{name}</span>", page)
    assert found is not None
    return found.group(1)


def test_page_needs_nothing_from_anywhere() -> None:
    page = page_of(eventful(20, sends_per_second=50), GOOD)

    assert not re.search(r"https?:|//[a-z]|@import|src=|<link|url\((?!#)", page)


def test_picture_is_well_formed_and_names_every_node() -> None:
    page = page_of(eventful(20, sends_per_second=50), GOOD)

    named = set(texts(page))
    assert {f"c{number}" for number in (1, 2, 3)} <= named
    assert {f"g{group}-b{number}" for group in (1, 2) for number in (1, 2, 3)} <= named
    assert {"master 1", "master 2", "kill g2-b1", "heal"} <= named


def test_long_name_of_a_fault_is_cut_in_the_plot_and_whole_in_its_tip() -> None:
    maker = Maker()
    everybody = ",".join(f"client-{number}" for number in range(20))
    maker.fault("split", everybody, 100, 900)

    page = page_of(maker.history(), GOOD)

    assert f"split {everybody} at" in page
    assert max(len(shown) for shown in texts(page)) <= 36


def test_what_a_history_says_cannot_become_markup() -> None:
    maker = Maker()
    proof = maker.send(EVIL, 5.0, outcome=Outcome.FAIL, error=EVIL, topic=EVIL)
    maker.fault(EVIL, EVIL, 1, 3)
    maker.decide(2, "master_elected", 1, group=EVIL, master=1, reason=EVIL, sync_state_set=[EVIL])
    history = History(world={"bed": EVIL, EVIL: EVIL}, entries=maker.entries)
    violation = Violation(property=EVIL, sentence=EVIL, proof=(proof.number,))

    page = page_of(history, Verdict(violations=(violation,), counters={EVIL: 1}))

    assert "<script>alert" not in page
    assert picture(page).tag == "svg"


def test_violation_stands_on_top_with_the_entries_that_prove_it() -> None:
    maker = Maker()
    lost = maker.send("client-1", 10.0, value="client-1-7")
    gone = Violation(property="S1", sentence="client-1-7 is gone", proof=(lost.number, 999))

    page = page_of(maker.history(), Verdict(violations=(gone,), counters={}))

    assert page.index("1 violation") < page.index("client-1-7 is gone") < page.index("<svg")
    assert "sent client-1-7 to orders: acknowledged orders g1/0" in page
    assert "not in this history" in page
    assert "S1" in texts(page)


def test_many_violations_are_counted_and_not_all_shown() -> None:
    violations = tuple(
        Violation(property="S2", sentence=f"broken-{number}.") for number in range(1000)
    )

    page = page_of(Maker().history(), Verdict(violations=violations, counters={}))

    assert "1,000 violations" in page
    assert "broken-10." in page
    assert "broken-900." not in page


@pytest.mark.parametrize("seed", range(3))
def test_every_acknowledgement_is_in_the_plot(seed: int) -> None:
    history = eventful(20, sends_per_second=100, seed=seed)
    acknowledged = sum(
        1 for entry in history.entries if getattr(entry, "value", None) and entry_is_ok(entry)
    )

    assert sum(rates(page_of(history, GOOD))["ok"]) == acknowledged


def entry_is_ok(entry: object) -> bool:
    return getattr(entry, "outcome", None) is Outcome.OK


def test_size_of_the_page_does_not_grow_with_the_operations() -> None:
    few = len(page_of(eventful(20, sends_per_second=100), GOOD))

    many = len(page_of(eventful(20, sends_per_second=4000), GOOD))

    assert many < few * 1.2
