"""Settings: sources in order, refusals that name the mistake, secrets never shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NewType

import click
import pytest
from click.testing import CliRunner

from paceline.errors import ConfigError
from paceline.platform.address import Address, parse_address
from paceline.platform.config import MASK, effective, example_toml, load, options, require, setting

Name = NewType("Name", str)


class Durability(Enum):
    FSYNC = "fsync"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    name: Name = setting("Name of the node.")
    port: int = setting("Port.", default=7700, minimum=0, maximum=65_535)
    heartbeat_ms: int = setting("Heartbeat.", default=300)
    timeout_ms: int = setting("Silence that counts as death.", default=1500)
    ratio: float = setting("A ratio.", default=0.5)
    is_insecure: bool = setting("Allow open listeners.", default=False)
    durability: Durability = setting("What counts.", default=Durability.FSYNC)
    codec: Literal["none", "lz4"] = setting("Codec.", default="none")
    listen: Address = setting("Listen.", default=Address("127.0.0.1", 0))
    advertised: Address | None = setting("As others dial it.", default=None)
    controllers: tuple[Address, ...] = setting("Controllers.", default=())
    peers: Mapping[str, Address] = setting("Peers.", default=MappingProxyType({}))
    password: str = setting("Password.", default="", is_secret=True)

    def validate(self) -> None:
        require(
            self.heartbeat_ms * 3 <= self.timeout_ms,
            f"heartbeat_ms ({self.heartbeat_ms}) must be at most a third of "
            f"timeout_ms ({self.timeout_ms})",
        )


def load_example(
    environment: dict[str, str] | None = None, toml: Path | None = None, **flags: object
) -> Example:
    return load(
        Example,
        process="broker",
        toml_path=str(toml) if toml else None,
        environment=environment,
        flags={"name": "b1", **flags},
    )


def a_toml(folder: Path, text: str) -> Path:
    path = folder / "broker.toml"
    path.write_text(text)
    return path


def test_later_sources_win_over_earlier_ones(tmp_path: Path) -> None:
    toml = a_toml(tmp_path, "port = 1\nheartbeat_ms = 1\ntimeout_ms = 9000\n")
    environment = {"PACELINE_BROKER_PORT": "2", "PACELINE_BROKER_HEARTBEAT_MS": "2"}

    config = load_example(environment, toml, port=3)

    assert (config.port, config.heartbeat_ms, config.timeout_ms, config.ratio) == (3, 2, 9000, 0.5)


def test_flag_that_is_none_was_not_given() -> None:
    assert load_example(port=None).port == 7700


def test_every_type_is_read_from_text() -> None:
    config = load_example(
        {
            "PACELINE_BROKER_RATIO": "0.25",
            "PACELINE_BROKER_IS_INSECURE": "yes",
            "PACELINE_BROKER_DURABILITY": "memory",
            "PACELINE_BROKER_CODEC": "lz4",
            "PACELINE_BROKER_LISTEN": "0.0.0.0:80",
            "PACELINE_BROKER_ADVERTISED": "[::1]:81",
            "PACELINE_BROKER_CONTROLLERS": "a:1, b:2",
            "PACELINE_BROKER_PEERS": "c1=a:1,c2=b:2",
        }
    )

    assert config.ratio == 0.25
    assert config.is_insecure is True
    assert config.durability is Durability.MEMORY
    assert config.codec == "lz4"
    assert config.listen == Address("0.0.0.0", 80)
    assert config.advertised == Address("::1", 81)
    assert config.controllers == (Address("a", 1), Address("b", 2))
    assert config.peers == {"c1": Address("a", 1), "c2": Address("b", 2)}


def test_every_type_is_read_from_toml(tmp_path: Path) -> None:
    toml = a_toml(
        tmp_path,
        'ratio = 1\nis_insecure = true\ndurability = "memory"\ncontrollers = ["a:1"]\n'
        'advertised = "b:9"\n[peers]\nc1 = "a:1"\n',
    )

    config = load_example(toml=toml)

    assert (config.ratio, config.is_insecure, config.durability) == (1.0, True, Durability.MEMORY)
    assert config.controllers == (Address("a", 1),)
    assert config.peers == {"c1": Address("a", 1)}
    assert config.advertised == Address("b", 9)


def test_empty_text_is_none_for_an_optional_setting() -> None:
    assert load_example({"PACELINE_BROKER_ADVERTISED": " "}).advertised is None


def test_variable_of_the_process_can_name_the_toml_file(tmp_path: Path) -> None:
    toml = a_toml(tmp_path, "port = 5\n")

    assert load_example({"PACELINE_BROKER_CONFIG": str(toml)}).port == 5


def test_variables_of_other_processes_are_left_alone() -> None:
    assert load_example({"PACELINE_CONTROLLER_PROT": "1", "HOME": "/"}).port == 7700


def test_unknown_toml_key_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hartbeat_ms is no known setting; did you mean heartb"):
        load_example(toml=a_toml(tmp_path, "hartbeat_ms = 1\n"))


def test_unknown_variable_is_refused_with_the_nearest_variable() -> None:
    with pytest.raises(ConfigError, match="did you mean PACELINE_BROKER_PORT"):
        load_example({"PACELINE_BROKER_PROT": "1"})


def test_unknown_flag_is_refused_with_the_nearest_flag() -> None:
    with pytest.raises(ConfigError, match="did you mean --timeout-ms"):
        load_example(timeout=1)


def test_unknown_key_without_a_near_name_lists_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known: name, port"):
        load_example(toml=a_toml(tmp_path, "zzzzzzzz = 1\n"))


def test_required_setting_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match="--name, PACELINE_BROKER_NAME, or name in the TOML"):
        load(Example, process="broker")


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("PORT", "seven", "must be a whole number, not 'seven'"),
        ("PORT", "-1", "is -1; the least is 0"),
        ("PORT", "70000", "is 70000; the most is 65535"),
        ("PORT", "9" * 30, "must be a number up to"),
        ("PORT", "9" * 5000, "must be a whole number"),
        ("RATIO", "nan", "must be a number up to"),
        ("RATIO", "inf", "must be a number up to"),
        ("RATIO", "x", "must be a number, not 'x'"),
        ("IS_INSECURE", "maybe", "must be true or false"),
        ("DURABILITY", "disk", "must be one of fsync, memory"),
        ("CODEC", "zip", "must be one of none, lz4"),
        ("LISTEN", "localhost", "is not an address"),
        ("PEERS", "c1", "must be name=value"),
        ("PEERS", "c1=a:1,c1=b:2", "each name once"),
    ],
)
def test_malformed_text_is_refused_with_its_variable(key: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"PACELINE_BROKER_{key}.*{sentence}"):
        load_example({f"PACELINE_BROKER_{key}": text})


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('port = "7700"', "must be a whole number"),
        ("port = true", "must be a whole number"),
        ("port = 1.5", "must be a whole number"),
        ("ratio = nan", "must be a number up to"),
        ("ratio = -inf", "must be a number up to"),
        (f"heartbeat_ms = {'9' * 400}", "must be a number up to"),
        (f"heartbeat_ms = {'9' * 5000}", "not valid TOML"),
        ("is_insecure = 1", "must be true or false"),
        ("name = 1", "must be a text"),
        ("controllers = 1", "must be a list"),
        ("peers = [1]", "must be a table"),
        ("listen = 7700", "must be a text"),
        ("port = ", "not valid TOML"),
    ],
)
def test_toml_value_of_a_wrong_type_is_refused(tmp_path: Path, line: str, sentence: str) -> None:
    toml = a_toml(tmp_path, line + "\n")
    flags = {} if line.startswith("name") else {"name": "b1"}

    with pytest.raises(ConfigError, match=sentence):
        load(Example, process="broker", toml_path=str(toml), flags=flags)


def test_missing_toml_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read .*absent.toml: No such file"):
        load_example(toml=tmp_path / "absent.toml")


def test_relations_between_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"heartbeat_ms \(600\) must be at most a third"):
        load_example(heartbeat_ms=600)


def test_effective_configuration_masks_secrets_and_is_plain_json() -> None:
    shown = effective(load_example(password="hunter2", peers="c1=a:1"))

    assert shown["password"] == MASK
    assert shown["listen"] == "127.0.0.1:0"
    assert shown["peers"] == {"c1": "a:1"}
    assert shown["durability"] == "fsync"


def test_example_file_names_every_setting_with_its_default() -> None:
    text = example_toml(Example, title="A broker.")

    assert "# Silence that counts as death.\n# timeout_ms = 1500\n" in text
    assert "# name = (required)" in text
    assert '# listen = "127.0.0.1:0"' in text


def test_options_hand_over_what_was_given() -> None:
    @click.command()
    @options(Example)
    def command(**flags: object) -> None:
        config = load(Example, process="broker", flags=flags)
        click.echo(f"{config.name} {config.port} {config.is_insecure}")

    result = CliRunner().invoke(command, ["--name", "b7", "--port", "9", "--is-insecure"])

    assert result.output == "b7 9 True\n"


@pytest.mark.parametrize("text", ["", ":1", "a", "a:", "a:b", "a:70000", "::1:7", "a b:1", "a:-1"])
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:7700", "[::1]:80", "broker-1.example.org:0"])
def test_address_reads_back_as_written(text: str) -> None:
    assert str(parse_address(text)) == text


def test_only_this_machine_counts_as_loopback() -> None:
    assert Address("localhost", 1).is_loopback
    assert Address("::1", 1).is_loopback
    assert not Address("0.0.0.0", 1).is_loopback
    assert not Address("example.org", 1).is_loopback
