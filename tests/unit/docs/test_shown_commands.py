"""Every command and program that README and docs show is run by a test, or says why not."""

import re

import click
import pytest
from tests.shown import ROOT, WAYS, documents, shown, unmarked
from tests.support.process.readme import DOCUMENTS

from paceline.cli.main import command

COMMANDS = re.compile(r"`(?:\.venv/bin/)?paceline ([^`]+)`")
"""In a sentence."""


def test_commands_are_found() -> None:
    found = {one.text for one in shown()}

    assert {"make up", "paceline cluster clean g1 --yes", "import asyncio"} <= found
    assert any(text.startswith("curl -sf -X PUT") for text in found)


def test_every_shown_command_is_run_or_says_why_not() -> None:
    found = {one.text: one.document for one in unmarked()}

    missing = [f"{document}: {text}" for text, document in found.items() if text not in WAYS]
    assert not missing, "mark its block runnable, or add it to tests/shown.py"
    assert [text for text in WAYS if text not in found] == [], "no document shows it any more"


@pytest.mark.parametrize("text", WAYS)
def test_the_test_that_is_named_has_the_command(text: str) -> None:
    way = WAYS[text]
    if way.not_run:
        assert not way.test
        return
    source = (ROOT / way.test).read_text().replace("'", '"')
    wanted = way.by or f'"{text}'

    assert wanted in source, f"{way.test} does not run it"


def test_documents_with_runnable_blocks_are_run() -> None:
    marked = {one.document for one in shown() if one.is_runnable}

    features = {document for document in marked if document.startswith("docs/features/")}
    assert marked - features == set(DOCUMENTS)


def words_of(line: str) -> list[str]:
    return re.sub(r"[\[\](){}|,;]", " ", line).split()


def test_commands_and_options_in_sentences_exist() -> None:
    wrong = []
    for path in documents():
        for line in COMMANDS.findall(re.sub(r"\n", " ", path.read_text())):
            found: click.Command = command
            options = {"--help"}
            for word in words_of(line):
                if word.startswith("--"):
                    known = {
                        opt for one in found.params for opt in (*one.opts, *one.secondary_opts)
                    }
                    if word.partition("=")[0] not in known | options:
                        wrong.append(f"{path.name}: {line}: {word}")
                elif isinstance(found, click.Group):
                    inner = found.get_command(click.Context(found), word)
                    if inner is None:
                        wrong.append(f"{path.name}: {line}: {word}")
                        break
                    found = inner
    assert wrong == []
