"""Users and rights on a broker's disk."""

import msgspec
import pytest
from tests.support.rights import SECRETS, a_security, entry

from paceline.errors import CorruptLogError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import ManualClock, SeededRandom
from paceline.security.access import Access
from paceline.wire.rights import PUB
from paceline.wire.users import Security
from paceline_broker.controllers.told_security import ToldSecurity
from paceline_broker.storage.security_file import FILE, SecurityFile


def a_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder("/data")
    return disk


async def test_what_was_saved_last_is_there_after_a_power_loss() -> None:
    disk = a_disk()
    file = SecurityFile(disk, "/data")
    assert file.load() == Security()

    for version in range(1, 5):
        file.save(a_security(version=version, ana=(entry("Topic:orders", PUB),)))
    await file.close()
    disk.crash(SeededRandom("power"), keep_page_cache=False)

    assert SecurityFile(disk, "/data").load() == a_security(
        version=4, ana=(entry("Topic:orders", PUB),)
    )


async def test_no_secret_is_on_the_disk_and_a_flipped_bit_is_noticed() -> None:
    disk = a_disk()
    file = SecurityFile(disk, "/data")
    file.save(a_security())
    await file.close()

    opened = disk.open(f"/data/{FILE}")
    content = disk.pread(opened, disk.size(opened), 0)
    assert not any(secret.encode() in bytes(content) for secret in SECRETS.values())
    disk.writev(opened, [bytes(content).replace(b'"on"', b'"oN"')], 0)
    with pytest.raises(CorruptLogError, match="delete it"):
        SecurityFile(disk, "/data").load()


async def test_what_another_cluster_says_counts_only_once_the_store_is_its() -> None:
    disk = a_disk()
    own: list[str | None] = [None]
    access = Access(ManualClock())
    told = ToldSecurity(access, SecurityFile(disk, "/data"), cluster_id=lambda: own[0])

    told.arrived(msgspec.structs.replace(a_security(version=9), cluster_id="a"))
    assert access.version == 9, "a store without a cluster is closed as soon as it hears so"
    own[0] = "a"
    told.arrived(msgspec.structs.replace(a_security(version=3), cluster_id="b"))
    assert access.version == 9
    own[0] = "b"
    told.look()
    assert access.version == 3, "an operator has recovered the group there (R18)"
    await told.close()

    again = Access(ManualClock())
    ToldSecurity(again, SecurityFile(disk, "/data"), cluster_id=lambda: "b")
    assert (again.version, again.is_enforced) == (3, True)
