"""The report of a run as a file."""

from pathlib import Path

from paceline_chaos.history.model import History
from paceline_chaos.report.page import page_of
from paceline_chaos.verdict import Verdict


def write_report(history: History, verdict: Verdict, path: Path) -> Path:
    """One HTML file that needs neither network nor other files; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_of(history, verdict), encoding="utf-8")
    return path
