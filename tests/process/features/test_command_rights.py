"""Each command, run by users with rights on: it asks what it declares (`paceline.cli.needs`), the
rights that follow from that are enough, and without any one of them it is refused by name."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import click
import orjson
import pytest
from tests.support.process.commands import PASSWORD, Site, Words
from tests.unit.client.cli.conftest import Outcome

from paceline.cli.main import command as paceline
from paceline.cli.needs import ASKS, Right, declared, needs_line, rights_of
from paceline.wire.names import AUDIT_TOPIC, REPLY_TOPIC
from paceline.wire.rights import KNOWN_USER, Action

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("command_rights"),
]

ANYBODY = {"GET /v1/routes", "GET /v1/watch", "client", "open_session"}
"""What every command may ask: who it is, the view, a session for what happens once."""
LINES = {
    "topic create": ["topic create {new}"],
    "topic alter": [
        "topic alter orders --attribute cleanup=DELETE",
        "topic alter orders --queues 2",
    ],
    "topic delete": ["topic delete {topic} --yes"],
    "topic describe": ["topic describe orders", "topic describe static"],
    "topic list": ["topic list"],
    "topic remap": ["topic remap static 0 g1"],
    "send": ["send orders hello", "send {new} hello", "send paid tea --transaction commit"],
    "recall": ["recall later {recall}"],
    "delay list": ["delay list later"],
    "delay stats": ["delay stats", "delay stats later"],
    "pull": ["pull orders --max 1", "pull orders --filter red --max 1"],
    "consume": [
        "consume orders --group {new} --idle-exit-ms 300",
        "consume orders --group {new} --ordered --idle-exit-ms 300",
        "consume orders --group {new} --filter red --idle-exit-ms 300",
        "consume orders --group {new} --from 2026-01-01T00:00 --idle-exit-ms 300",
    ],
    "group alter": ["group alter billing --set retry_max_times=3"],
    "group clone": [
        "group clone {new} orders --from billing",
        "group clone {new} orders --from nobody => 1",
    ],
    "group create": ["group create {new}"],
    "group delete": ["group delete {group} --yes"],
    "group describe": ["group describe billing"],
    "group lag": ["group lag billing", "group lag nobody => 1"],
    "group list": ["group list"],
    "group members": ["group members billing", "group members nobody => 1"],
    "group reset": [
        "group reset billing orders --to first",
        "group reset nobody orders --to first => 1",
    ],
    "client list": ["client list"],
    "dlq list": ["dlq list {dead}"],
    "dlq purge": ["dlq purge {dead}"],
    "dlq resend": ["dlq resend {dead} --all"],
    "dlq show": ["dlq show {dead} g1/0/0"],
    "message find": ["message find orders --key alice"],
    "message show": ["message show {message}"],
    "message track": ["message track {message}"],
    "request": [
        "request orders hello --timeout-ms 3000 => 1",
        "request {new} hello --timeout-ms 3000 => 1",
    ],
    "reply": ["reply {asked} yes --group answering --max 1"],
    "receive": ["receive orders --group {new} --max 1 --ack"],
    "ack": ["ack --group working {receipt}"],
    "change-invisible": ["change-invisible --group working --invisible-ms 60000 {receipt}"],
    "transaction commit": ["transaction commit {half}"],
    "transaction list": ["transaction list", "transaction list --topic paid"],
    "transaction rollback": ["transaction rollback {half}"],
    "transaction show": ["transaction show {half}"],
    "cluster add-write-perm": ["cluster add-write-perm g1"],
    "cluster clean": ["cluster clean g1 --yes => 1", "cluster clean g1 --replica 1 --yes => 1"],
    "cluster elect": ["cluster elect g1 --to 1 => 1"],
    "cluster epochs": ["cluster epochs g1"],
    "cluster ha-status": ["cluster ha-status"],
    "cluster history": ["cluster history g1"],
    "cluster pins add": [
        "cluster pins add owner",
        "cluster pins add owner --topic orders --queue 0",
    ],
    "cluster pins list": ["cluster pins list"],
    "cluster pins remove": ["cluster pins remove {pinned}"],
    "cluster recover": [
        "cluster recover --list",
        "cluster recover g1 --store 4f2a --yes => 1",
        "cluster recover --forget 4f2a --yes => 1",
    ],
    "cluster status": ["cluster status"],
    "cluster sync-state-set": ["cluster sync-state-set"],
    "cluster transfer": ["cluster transfer g1 --to 1 => 1"],
    "cluster wipe-write-perm": ["cluster wipe-write-perm {wiped}"],
    "controller members add": [
        "controller members add c5 --raft 127.0.0.1:1 --client 127.0.0.1:2 --wait-s 1 => 1"
    ],
    "controller members list": ["controller members list"],
    "controller members remove": ["controller members remove c9 --wait-s 1 => 1"],
    "controller members replace": [
        "controller members replace c8 c9 --raft 127.0.0.1:1 --client 127.0.0.1:2 --wait-s 1 => 1"
    ],
    "controller status": ["controller status"],
    "controller transfer": ["controller transfer => 1"],
    "user add-key": ["user add-key {user}"],
    "user alter": ["user alter {user} --default-namespace shop"],
    "user create": ["user create {new}"],
    "user delete": ["user delete {user}"],
    "user end-logins": ["user end-logins {user}"],
    "user list": ["user list"],
    "user remove-key": ["user remove-key {user} {key}"],
    "user set-password": [
        f"user set-password {{user}} < {PASSWORD}",
        f"user set-password ana --change --connect-timeout-ms 30000 < {PASSWORD}\n{PASSWORD}",
    ],
    "acl explain": ["acl explain ana All Topic:orders => 1"],
    "acl lint": ["acl lint"],
    "acl list": ["acl list", "acl list ana"],
    "acl remove": ["acl remove {user} --resource Topic:orders"],
    "acl set": ["acl set {user} --resource Topic:orders --actions Pub"],
    "quota delete": ["quota delete User:ana"],
    "quota list": ["quota list"],
    "quota set": ["quota set User:ana --requests 50000"],
    "audit search": ["audit search --limit 2"],
    "security disable": ["security disable"],
    "security enable": ["security enable", "security enable --new-key"],
    "security seal-keys": ["security seal-keys"],
    "security status": ["security status"],
    "login": [f"login --user ana --connect-timeout-ms 30000 < {PASSWORD}"],
    "whoami": ["whoami"],
}
"""Command -> lines that together ask all that it may ask. A word in braces is made anew for each
run; `< TEXT` is typed, `=> 1` is the exit code of whoever may do it."""
NOT_BROUGHT_ABOUT = {
    "security enable": {"put_user"},
    "controller members add": {"get_status"},
    "consume": {"resets"},
    "dlq purge": {"FOLLOW"},
    "dlq show": {"offsets"},
    "reply": {"filter", "times", "resets", "send_back"},
    "send": {"get_topic"},
    "request": {"get_topic"},
    "controller members remove": {"get_status"},
    "controller members replace": {"get_status", "remove_member"},
}
"""Asked only while a quorum really changes, after a while, or by others of the same kind."""
NOT_RUN = {"export": "it needs Spark: tests/spark runs it with a user's key"}
COMMANDS = sorted(LINES)
BLIND: Words = (("Group:*", "All"), ("Cluster:*", "All"))
"""It sees no topic."""


class Line(NamedTuple):
    """One line of `LINES`."""

    words: str
    typed: str
    exit_code: int

    @classmethod
    def read(cls, text: str) -> "Line":
        text, _, code = text.partition(" => ")
        words, _, typed = text.partition(" < ")
        return cls(words, typed, int(code or 0))

    def needs(self, right: Right) -> bool:
        """Whether that right is for what this line does."""
        if right.when.startswith("--"):
            return right.when in self.words
        return not right.when or len(self.words.split()) > 2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    policies = [
        policy
        for command in COMMANDS
        for right in rights_of(ASKS[command] or ())
        for policy in (*exactly(command), all_but(right))
    ]
    with Site.running(tmp_path_factory.mktemp("commands"), [*policies, BLIND, ()]) as site:
        yield site


def exactly(command: str) -> list[Words]:
    """Policies of just what a command needs: with the first of the actions that would do, with the
    second, and so on."""
    rights = rights_of(ASKS[command] or ())
    count = max((len(right.actions) for right in rights), default=1)
    return [
        tuple(
            (_resource(right), right.actions[min(at, len(right.actions) - 1)]) for right in rights
        )
        for at in range(count)
    ]


def all_but(missing: Right) -> Words:
    """A policy of everything but one right."""
    left = [each for each in Action if each is not Action.ALL and each not in missing.actions]
    everything = ("Topic:*", "Group:*", "Cluster:*", f"Topic:{REPLY_TOPIC}", f"Topic:{AUDIT_TOPIC}")
    return tuple(
        (resource, action)
        for resource in everything
        for action in (left if resource == _resource(missing) else [Action.ALL])
    )


def _resource(right: Right) -> str:
    return f"{right.type}:{right.topic or '*'}"


def run_lines(
    site: Site, command: str, policy: Words | None, *options: str
) -> list[tuple[Line, Outcome]]:
    """What became of each line of a command, run by a user of that policy; None: a super user."""
    return [
        (line, site.run(line.words, *options, policy=policy, typed=line.typed))
        for line in map(Line.read, LINES[command])
    ]


def test_every_command_declares_what_it_asks() -> None:
    """And has lines here, unless it asks nothing."""
    assert set(commands(paceline)) == set(ASKS)
    assert {name for name, asked in ASKS.items() if asked is not None} == {*LINES, *NOT_RUN}
    for asked in filter(None, ASKS.values()):
        for each in asked:
            declared(each.name)
    for name in ANYBODY - {"GET /v1/routes", "GET /v1/watch"}:
        assert declared(name) == KNOWN_USER


def commands(group: click.Command, path: str = "") -> Iterator[str]:
    """The path of each command, without the name of the program."""
    if not isinstance(group, click.Group):
        yield path
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found, f"{path} {name}".strip())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_asks_what_it_declares(site: Site, command: str) -> None:
    site.asked.names.clear()

    for line, outcome in run_lines(site, command, None):
        assert outcome.exit_code == line.exit_code, (line, outcome)

    # What is only asked to say why something is not seen.
    for right in rights_of(ASKS[command] or ()):
        run_lines(site, command, all_but(right))
    for policy in (BLIND, ()):
        run_lines(site, command, policy)
    asked, names = site.asked.names - ANYBODY, {each.name for each in ASKS[command] or ()}
    assert asked <= names
    assert names - asked <= NOT_BROUGHT_ABOUT.get(command, set())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_rights_that_a_command_names_are_enough(site: Site, command: str) -> None:
    for policy in exactly(command):
        for line, outcome in run_lines(site, command, policy):
            assert outcome.exit_code == line.exit_code, (policy, line, outcome)
            assert "may not" not in outcome.stderr, (policy, line, outcome)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_one_of_its_rights_a_command_is_refused_by_name(site: Site, command: str) -> None:
    for right in rights_of(ASKS[command] or ()):
        policy, refused = all_but(right), 0
        told = run_lines(site, command, policy)
        as_json = run_lines(site, command, policy, "--json")
        for (line, outcome), (_, document) in zip(told, as_json, strict=True):
            if outcome.exit_code == line.exit_code and "may not" not in outcome.stderr:
                continue
            refused += 1
            assert outcome.exit_code == document.exit_code == 1, (right, line, outcome)
            action = " or ".join(right.actions)
            assert re.search(
                rf"may not {action} on \S+: .*; a super user can allow it", outcome.stderr
            ), (right, line, outcome)
            problem = orjson.loads(document.stderr.splitlines()[-1])
            assert (problem["status"], problem["code"]) == (403, "NOT_AUTHORIZED")
            assert problem.get("actions", list(right.actions)) == list(right.actions), (
                right,
                line,
                problem,
            )
        assert refused, (right, told)


@pytest.mark.parametrize("command", [name for name, asked in ASKS.items() if asked is not None])
def test_the_help_of_a_command_ends_with_what_it_needs(site: Site, command: str) -> None:
    shown = site.run(command, "--help", policy=None).stdout

    assert " ".join(shown.split()).endswith(needs_line(command))
