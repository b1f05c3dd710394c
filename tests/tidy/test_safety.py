"""What no code of ours does, because brokers of others have been broken into by it.

Each test names the record (CVE) of such a flaw; docs/RELIABILITY.md lists them all.
"""

import ast
from collections.abc import Iterator

import pytest
from tests.tidy.tree import PRODUCT, Module

NODES = tuple(
    module
    for module in PRODUCT
    if module.package in ("paceline_broker", "paceline_controller")
    or module.name.startswith(
        (
            "paceline.filters",
            "paceline.http_api",
            "paceline.records",
            "paceline.security",
            "paceline.server",
            "paceline.wire",
        )
    )
)
"""What handles requests at a node."""
SECRET_NAMES = {
    "secret",
    "secret_key",
    "password",
    "proof",
    "mac",
    "hmac",
    "signature",
    "authorization",
}
BUILTINS = {"compile", "eval", "exec"}
RUNS_WHAT_IT_IS_GIVEN = (
    "builtins.",
    "ctypes",
    "marshal",
    "multiprocessing",
    "os.exec",
    "os.popen",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pickle.load",
    "pickle.Unpickler",
    "runpy",
    "shelve",
    "subprocess",
    "yaml",
)
IMPORTS_BY_NAME = {
    "broker/paceline_broker/service/hooks.py": "modules that the operator's settings name",
    "controller/paceline_controller/raft/library.py": "one module, whose name stands there",
}
LOGS_OF_EVENTS = {
    "controller/paceline_controller/node.py": "the kinds of events, which are the machine's own",
}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def compared_secrets(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Compare):
            continue
        if not any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops):
            continue
        for side in (node.left, *node.comparators):
            name = getattr(side, "attr", getattr(side, "id", ""))
            if str(name).lstrip("_") in SECRET_NAMES:
                yield f"{module.path}:{node.lineno}: {name}"


def logged_texts(module: Module) -> Iterator[str]:
    """Log lines whose first argument is not written there as it is."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        name = getattr(owner, "id", getattr(owner, "attr", ""))
        is_log = str(name).endswith(("log", "logger", "strangers"))
        if is_log and node.func.attr in LOG_METHODS and node.args:
            first = node.args[0]
            texts = (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,)
            is_fixed = all(isinstance(each, ast.Constant) for each in texts)
            if not is_fixed and module.path not in LOGS_OF_EVENTS:
                yield f"{module.path}:{node.lineno}"


def run_by_name(module: Module) -> Iterator[str]:
    for line, name in module.calls():
        if name in BUILTINS or name.startswith(RUNS_WHAT_IT_IS_GIVEN):
            yield f"{module.path}:{line}: {name}"
        if name.startswith(("importlib.", "__import__")) and module.path not in IMPORTS_BY_NAME:
            yield f"{module.path}:{line}: {name}"


def test_secrets_are_compared_in_constant_time() -> None:
    """CVE-2021-38153 (Kafka): credentials compared by equality told their first bytes by time."""
    assert not [wrong for module in PRODUCT for wrong in compared_secrets(module)]


def test_a_text_from_outside_is_never_a_format() -> None:
    """CVE-2019-11287 (RabbitMQ): a header's value became a format string, and the node ended."""
    assert not [wrong for module in PRODUCT for wrong in logged_texts(module)]


def test_no_request_reaches_a_process_or_a_module() -> None:
    """CVE-2023-33246 and CVE-2023-37582 (RocketMQ), CVE-2023-25194 and CVE-2025-27818 (Kafka).

    Settings that anybody could change reached a shell; names of modules came from clients.
    """
    assert not [wrong for module in NODES for wrong in run_by_name(module)]


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("def f(a, proof):\n    return a == proof\n", compared_secrets),
        ("def f(self, a):\n    return self._secret != a\n", compared_secrets),
        ("log.warning(request.path)\n", logged_texts),
        ("self._log.info(f'{name} came')\n", logged_texts),
        ("import os\n\ndef f(name):\n    os.system(name)\n", run_by_name),
        ("import pickle\n\ndef f(body):\n    return pickle.loads(body)\n", run_by_name),
        ("from importlib import import_module\n\nimport_module('a')\n", run_by_name),
        ("def f(text):\n    return eval(text)\n", run_by_name),
    ],
)
def test_each_check_finds_what_it_is_for(text: str, check: object) -> None:
    assert callable(check)
    assert list(check(Module("broker/paceline_broker/x.py", "paceline_broker.x", text)))
