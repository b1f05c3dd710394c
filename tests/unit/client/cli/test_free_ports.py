"""Ports for nodes that are about to start."""

import socket

import pytest

from paceline.cli.local import free_ports as module
from paceline.cli.local.free_ports import END, FIRST, free_ports
from paceline.errors import ConfigError


def test_ports_differ_and_are_none_of_outgoing_connections() -> None:
    ports = free_ports(20, host="127.0.0.1")

    assert len(set(ports)) == 20
    assert all(FIRST <= port < END for port in ports)
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


def test_a_port_that_is_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    [taken] = free_ports(1, host="127.0.0.1")
    monkeypatch.setattr(module, "FIRST", taken)
    monkeypatch.setattr(module, "END", taken + 1)
    monkeypatch.setattr(module, "TRIES_MAX", 5)

    with socket.socket() as one:
        one.bind(("127.0.0.1", taken))
        with pytest.raises(ConfigError, match="no 1 free ports of 127.0.0.1"):
            free_ports(1, host="127.0.0.1")


def test_ports_are_of_the_range_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.RANGE_VARIABLE, "11000-11100")
    assert set(free_ports(10, host="127.0.0.1")) <= set(range(11_000, 11_100))


@pytest.mark.parametrize("text", ["", "x-y", "12000", "12000-11000", "80-2000", "60000-70000"])
def test_a_range_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(module.RANGE_VARIABLE, text)
    with pytest.raises(ConfigError, match="PACELINE_FREE_PORTS"):
        free_ports(1, host="127.0.0.1")
