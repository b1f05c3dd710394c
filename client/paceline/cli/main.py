"""The `paceline` command: its sub-commands by name, and the one place where errors are shown.

A sub-command's module is imported only when it is called, so `paceline --help` costs little and
`paceline topic list` does not load what `up` or a progress bar need. Every error that is not a bug
leaves here: one sentence on stderr (with --json the problem document as one JSON line) and an exit
code: 0 done, 1 the operation failed, 2 wrong usage, configuration or input, 130 Ctrl-C. Only this
module reads the environment.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import click

from paceline.cli.options import Defaults, as_command
from paceline.errors import BadRequestError, ConfigError, PacelineError, to_problem

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
"""128 + SIGPIPE, as of any program whose reader has gone (`paceline pull t | head`)."""


class _Entry(NamedTuple):
    target: str
    """ "module:attribute" of the click command."""
    summary: str
    """Its line in `paceline --help`; a test compares it with the command's own."""


COMMANDS = {
    "up": _Entry(
        "paceline.cli.local.up:command",
        "Start a whole cluster on this machine as real processes; Ctrl-C stops it.",
    ),
    "topic": _Entry(
        "paceline.cli.topic.command:command", "Create, alter, remap, list, describe, delete topics."
    ),
    "send": _Entry("paceline.cli.send.command:command", "Send a text, lines or a file to a topic."),
    "recall": _Entry(
        "paceline.cli.recall:command", "Take a delayed message back before it is due."
    ),
    "delay": _Entry(
        "paceline.cli.delay:command", "Show which delayed messages wait for their time."
    ),
    "pull": _Entry("paceline.cli.pull:command", "Print messages of a topic, without a group."),
    "consume": _Entry(
        "paceline.cli.consume:command", "Consume a topic as a member of a consumer group."
    ),
    "group": _Entry("paceline.cli.group.command:command", "Show, change and move consumer groups."),
    "client": _Entry(
        "paceline.cli.group.clients:command", "Show which producers and consumers are connected."
    ),
    "dlq": _Entry(
        "paceline.cli.group.dlq:command", "List, show, resend dead letters of a consumer group."
    ),
    "message": _Entry(
        "paceline.cli.message:command",
        "Find messages by id, key or time, and who has consumed them.",
    ),
    "request": _Entry(
        "paceline.cli.request:request_command", "Send a request to a topic and print the reply."
    ),
    "reply": _Entry(
        "paceline.cli.request:reply_command",
        "Answer the requests of a topic as a member of a consumer group.",
    ),
    "receive": _Entry("paceline.cli.receive:command", "Receive messages of topics by receipt."),
    "ack": _Entry("paceline.cli.receive:ack", "Acknowledge received messages by their handles."),
    "change-invisible": _Entry(
        "paceline.cli.receive:change_invisible",
        "Extend the invisible time of received messages.",
    ),
    "transaction": _Entry(
        "paceline.cli.transaction:command", "Show half messages; commit or roll them back."
    ),
    "cluster": _Entry(
        "paceline.cli.cluster.recover:command", "Show the cluster; elect, clean, recover."
    ),
    "controller": _Entry(
        "paceline.cli.cluster.controller:command",
        "Show the controllers; hand leadership over, change who they are.",
    ),
    "user": _Entry(
        "paceline.cli.security.user:command",
        "Show, make, change and delete users; give them access keys.",
    ),
    "acl": _Entry(
        "paceline.cli.security.acl:command", "Show, change, explain and check what users may do."
    ),
    "quota": _Entry(
        "paceline.cli.security.quota:command",
        "Show, set and delete quotas of users, clients, namespaces and topics.",
    ),
    "audit": _Entry(
        "paceline.cli.security.audit:command", "Search who has done, or was refused, what."
    ),
    "security": _Entry(
        "paceline.cli.security.security:command", "Switch users and rights on and off."
    ),
    "tls": _Entry(
        "paceline.cli.security.tls:command",
        "Make an authority and certificates for a cluster; look at and renew them.",
    ),
    "login": _Entry(
        "paceline.cli.security.security:login",
        "Keep an access key, or a login with a password, in your profile.",
    ),
    "logout": _Entry(
        "paceline.cli.security.security:logout", "Forget the access key of your profile."
    ),
    "whoami": _Entry(
        "paceline.cli.security.security:whoami",
        "Show as whom the cluster knows you, and what you may do.",
    ),
    "log": _Entry(
        "paceline_broker.integrity.salvage_command:command",
        "Check the log of a stopped broker; discard damaged records.",
    ),
    "export": _Entry(
        "paceline.cli.export:command",
        "Export topics as files, incrementally and exactly once, with Spark.",
    ),
    "demo": _Entry(
        "paceline.cli.local.demo:command",
        "Send 336,776 real flight records, kill the master half-way, lose nothing.",
    ),
    "bench": _Entry(
        "paceline.cli.bench.command:command",
        "Measure throughput, latency and CPU per message on a cluster of its own.",
    ),
    "chaos": _Entry(
        "paceline_chaos.cli:command",
        "Break a cluster in every way we know and judge what it did.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports a sub-command when it is called, and not for `--help`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else load(entry.target)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


def load(target: str) -> click.Command:
    """The click command that "module:attribute" names."""
    module, _, attribute = target.partition(":")
    return as_command(getattr(importlib.import_module(module), attribute))


@click.group("paceline", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="paceline", message="paceline %(version)s")
def command() -> None:
    """A message broker cluster: one replicated log, elected masters, nothing acknowledged is lost.

    Start with `paceline up`, then in another terminal: `paceline topic create greetings`,
    `paceline send greetings hello`, `paceline pull greetings`.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: this process's arguments); the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in takewhile(lambda argument: argument != "--", given)
    defaults = _defaults(os.environ)
    try:
        code = command.main(given, prog_name="paceline", standalone_mode=False, obj=defaults)
    except PacelineError as error:
        return _tell(error, as_json=as_json)
    except click.ClickException as error:
        if as_json:
            return _tell(BadRequestError(error.format_message()), as_json=True)
        error.show()
        return EXIT_REFUSED
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except SystemExit:
        # Only click's answer to a broken pipe; it has silenced the last flush of stdout too.
        return EXIT_PIPE_CLOSED
    return code if isinstance(code, int) else 0


def _defaults(environment: Mapping[str, str]) -> Defaults:
    configuration = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    folder = environment.get("PACELINE_CONFIG_DIR") or Path(configuration) / "paceline"
    return Defaults(
        bootstrap=environment.get("PACELINE_BOOTSTRAP", ""),
        environment=environment,
        folder=Path(folder),
        profile=environment.get("PACELINE_PROFILE") or "default",
    )


def _tell(error: PacelineError, *, as_json: bool) -> int:
    if as_json:
        import orjson

        click.echo(orjson.dumps(to_problem(error), default=str).decode(), err=True)
    else:
        click.echo(f"paceline: {error.message}", err=True)
    return EXIT_REFUSED if isinstance(error, BadRequestError | ConfigError) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
