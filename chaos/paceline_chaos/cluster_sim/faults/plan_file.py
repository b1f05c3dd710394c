"""A plan as a JSON file: what replays one world exactly, a shrunk one above all.

The topology is drawn from the seed and the length of the load again, so both stand in the file
beside the faults. Files are written by hand, too: whatever is wrong with one is a sentence
(BadRequestError) before anything runs.
"""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from paceline.errors import BadRequestError
from paceline_chaos.cluster_sim.faults.plan import Plan
from paceline_chaos.cluster_sim.topology import LOAD_MS, Topology, draw_topology
from paceline_chaos.faults.plan import KINDS, Fault

_MS_MAX = 3_600_000
_NEVER_PLANNED = "exit"
_DETAILS: Mapping[str, tuple[float, float]] = {
    "delay_ms": (0, 60_000),
    "offset_ms": (-1e11, 1e11),
    "rate": (0.1, 10),
    "period_ms": (1, 60_000),
    "operations": (0, 1_000_000),
    "count": (1, 1_000_000),
    "call": (0, 1),
    "region": (0, 1),
    "zeros": (0, 1 << 20),
    "inbound": (0, 1),
    "which": (0, 2),
    "dead": (0, 1),
}
"""Numbers of faults: the least and the most that a world can carry out."""
_ROLES = ("leader", "follower", "all", "brokers", "controllers", "clients")
_ROLES_OF_GROUPS = ("master", "replica", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPlan:
    """All that a run of a world depends on, besides the code."""

    seed: int
    load_ms: int
    plan: Plan


def write_plan(written: WrittenPlan, path: Path) -> None:
    """One fault a line, so that people can drop one."""
    lines = [f'{{"seed": {written.seed}, "load_ms": {written.load_ms},']
    lines += [f'"faults": [{_listed(written.plan.faults)}],']
    lines += [f'"broken": [{_listed(written.plan.broken)}]}}']
    path.write_text("\n".join(lines) + "\n")


def replay_of(path: Path) -> str:
    """The one command that runs the world of a plan file."""
    return shlex.join(["python", "-m", "paceline_chaos.cluster_sim", "--plan", str(path)])


def read_plan(path: Path) -> WrittenPlan:
    """What `write_plan` wrote. Raises BadRequestError."""
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise BadRequestError(f"the plan {path} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the plan {path} is not JSON: {error}") from None
    try:
        return _parsed(document)
    except _WrongError as error:
        raise BadRequestError(f"the plan {path} is wrong: {error}") from None


class _WrongError(Exception):
    """What is wrong, without the name of the file."""


def _listed(faults: tuple[Fault, ...]) -> str:
    texts = [orjson.dumps(_members(fault)).decode() for fault in faults]
    return ",".join("\n  " + text for text in texts)


def _members(fault: Fault) -> dict[str, Any]:
    members = asdict(fault)
    return {name: value for name, value in members.items() if value not in (None, {})}


# -- reading --------------------------------------------------------------------------------------


def _parsed(document: object) -> WrittenPlan:
    members = _object(document, "it", {"seed", "load_ms", "faults", "broken"})
    seed = _whole(members, "seed", "it", most=2**63 - 1)
    load_ms = _whole({"load_ms": LOAD_MS, **members}, "load_ms", "it")
    topology = draw_topology(seed, load_ms=load_ms)
    plan = Plan(
        faults=_faults(members, "faults", topology), broken=_faults(members, "broken", topology)
    )
    return WrittenPlan(seed=seed, load_ms=load_ms, plan=plan)


def _faults(members: Mapping[str, Any], name: str, topology: Topology) -> tuple[Fault, ...]:
    rows = members.get(name, [] if name == "broken" else None)
    if not isinstance(rows, list):
        raise _WrongError(f"{name} must be a list of faults")
    return tuple(
        _fault(row, f"fault {number} of {name}", topology)
        for number, row in enumerate(rows, start=1)
    )


def _fault(row: object, where: str, topology: Topology) -> Fault:
    members = _object(row, where, set(Fault.__dataclass_fields__))
    kind, target = _text(members, "kind", where), _text(members, "target", where)
    if kind not in KINDS or kind == _NEVER_PLANNED:
        known = ", ".join(name for name in KINDS if name != _NEVER_PLANNED)
        raise _WrongError(f"{where}: no fault is called {kind!r}; known: {known}")
    other = None if members.get("other") is None else _text(members, "other", where)
    for name in (target, other):
        if name is not None:
            _check_target(name, where, topology)
    return Fault(
        at_ms=_whole(members, "at_ms", where),
        kind=kind,
        target=target,
        for_ms=_whole({"for_ms": 0, **members}, "for_ms", where),
        other=other,
        details=_details(members.get("details", {}), where),
    )


def _check_target(target: str, where: str, topology: Topology) -> None:
    """A target that nobody can be is a mistake, not a fault that hits nobody."""
    role, _, group = target.partition(":")
    machines = {*topology.nodes(), *(client.name for client in topology.clients)}
    is_role = target in _ROLES or (role in _ROLES_OF_GROUPS and group in topology.groups)
    if not is_role and not set(target.split(",")) <= machines:
        raise _WrongError(f"{where}: nobody in this world is {target!r}")


def _details(given: object, where: str) -> dict[str, float]:
    if not isinstance(given, dict):
        raise _WrongError(f"details of {where} must be an object, not {_shown(given)}")
    for name, value in given.items():
        if name not in _DETAILS:
            raise _WrongError(f"{where} has no detail {name!r}; known: {', '.join(_DETAILS)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        low, high = _DETAILS[name]
        if not is_number or not low <= value <= high:
            raise _WrongError(
                f"{name} of {where} must be a number from {low:g} to {high:g}, not {_shown(value)}"
            )
    return given


def _object(given: object, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _WrongError(f"{where} must be an object, not {_shown(given)}")
    unknown = sorted(set(given) - known)
    if unknown:
        raise _WrongError(
            f"{where} has no member {unknown[0]!r}; known: {', '.join(sorted(known))}"
        )
    return given


def _whole(members: Mapping[str, Any], name: str, where: str, most: int = _MS_MAX) -> int:
    value = _required(members, name, where)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _WrongError(
            f"{name} of {where} must be a whole number from 0 to {most}, not {_shown(value)}"
        )
    return value


def _text(members: Mapping[str, Any], name: str, where: str) -> str:
    value = _required(members, name, where)
    if not isinstance(value, str):
        raise _WrongError(f"{name} of {where} must be text, not {_shown(value)}")
    return value


def _required(members: Mapping[str, Any], name: str, where: str) -> Any:  # what JSON may hold
    if name not in members:
        raise _WrongError(f"{where} has no {name}")
    return members[name]


def _shown(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 40 else text[:40] + "..."
