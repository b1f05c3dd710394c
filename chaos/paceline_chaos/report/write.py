"""Reports as files: one HTML page each, which needs neither network nor other files."""

from pathlib import Path

from paceline_chaos.history.model import History
from paceline_chaos.report.failover_figures import FailoverFigures
from paceline_chaos.report.failover_page import failover_page
from paceline_chaos.report.page import page_of
from paceline_chaos.verdict import Verdict


def write_report(history: History, verdict: Verdict, path: Path, *, is_whole: bool = True) -> Path:
    """The report of one run; its folder is made. `is_whole`: see `page_of`."""
    return _write(page_of(history, verdict, is_whole=is_whole), path)


def write_failover_report(figures: FailoverFigures, path: Path) -> Path:
    """The report of a failover measurement."""
    return _write(failover_page(figures), path)


def _write(page: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path
