"""Thin links: which calls to the kernel they become."""

from typing import Any

from paceline_chaos.processes.shaping import Shaping

AB, BA = ("127.0.1.1", "127.0.1.2"), ("127.0.1.2", "127.0.1.1")


class Netlink:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    async def tc(self, command: str, kind: str, **members: Any) -> None:
        self.told.append((f"{command} {kind}", members))


async def test_each_direction_has_a_bucket_that_is_found_by_both_addresses() -> None:
    netlink = Netlink()

    await Shaping(netlink).slow([AB, BA], rate_kbit=800)

    commands = [command for command, _ in netlink.told]
    of_pair = ["add-class htb", "add-filter u32", "change-class htb"]
    assert commands == ["add htb", *of_pair, *of_pair]
    filters = [members for command, members in netlink.told if command == "add-filter u32"]
    assert [one["keys"] for one in filters] == [
        ["0x7f000101/0xffffffff+12", "0x7f000102/0xffffffff+16"],
        ["0x7f000102/0xffffffff+12", "0x7f000101/0xffffffff+16"],
    ]
    assert len({one["target"] for one in filters}) == 2
    assert netlink.told[-1][1]["rate"] == "800kbit"


async def test_bucket_is_opened_and_used_again() -> None:
    netlink = Netlink()
    shaping = Shaping(netlink)
    await shaping.slow([AB], rate_kbit=800)
    netlink.told.clear()

    await shaping.heal_all()
    await shaping.slow([AB], rate_kbit=100)

    assert [command for command, _ in netlink.told] == ["change-class htb", "change-class htb"]
    assert [members["rate"] for _, members in netlink.told] == ["10gbit", "100kbit"]
