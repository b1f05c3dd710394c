"""What is promised of hooks, taken out (S41): told of all once, and asked before each put."""

from typing import Any

from paceline.consumer.hooks import ConsumeHooks
from paceline.producer.hooks import SendHooks
from paceline_broker.service.hooks import Hooks
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _told_of_each_attempt() -> list[Patch]:
    """A retry at the next master counts as another send."""
    before = SendHooks.before

    def before_each(hooks: SendHooks, batch: Any, *, is_oneway: bool = False) -> None:
        batch.context = None
        before(hooks, batch, is_oneway=is_oneway)

    return [(SendHooks, "before", before_each)]


def _first_part_only() -> list[Patch]:
    """Of what is handed out hooks are told the first message only."""
    hand_out = ConsumeHooks.hand_out

    def hand_out_first(hooks: ConsumeHooks, messages: Any) -> None:
        hand_out(hooks, messages[:1])

    return [(ConsumeHooks, "hand_out", hand_out_first)]


def _not_asked() -> list[Patch]:
    """Brokers store what their operator's hook refuses."""

    def forget(hooks: Hooks, hook: Any) -> None: ...

    return [(Hooks, "before_put", forget)]


def _mutant(rule: str, meaning: str, patches: Any) -> Mutant:
    return Mutant(rule=rule, meaning=meaning, patches=patches, **of_moment("hooks", "S41"))


HOOKS = (
    _mutant("S41-attempts", "hooks are told of each attempt of a batch", _told_of_each_attempt),
    _mutant("S41-parts", "hooks are told of some of what is handed out", _first_part_only),
    _mutant("S41-asked", "a hook before put is not asked", _not_asked),
)
"""Judged by the script of hooks."""
