"""The file of profiles: who may read it, what it may hold, and several that write it at once."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.cli.profiles import FILE_NAME, LOCK_NAME, Profile, read_profiles, write_profile
from paceline.errors import ConfigError


def test_profiles_that_are_written_at_once_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    names = [f"p{number}" for number in range(100)]
    with ThreadPoolExecutor(8) as threads:
        kept = [
            threads.submit(write_profile, tmp_path, name, Profile(bootstrap="a:1"))
            for name in names
        ]
        assert [each.result() for each in kept] == names

    assert sorted(read_profiles(tmp_path)) == sorted(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK_NAME, FILE_NAME]


def test_a_profile_of_another_cluster_stays_and_one_of_the_same_does_not(tmp_path: Path) -> None:
    def keep(bootstrap: str, access_key: str) -> str:
        profile = Profile(bootstrap=bootstrap, access_key=access_key)
        return write_profile(tmp_path, "default", profile)

    assert keep("prod:1", "k1") == "default"
    assert keep("test:1", "k2") == "default-2"
    assert keep("third:1", "k3") == "default-3"
    assert keep("test:1", "k4") == "default-2"
    assert keep("prod:1", "k5") == "default"
    kept = {name: each.access_key for name, each in read_profiles(tmp_path).items()}
    assert kept == {"default": "k5", "default-2": "k4", "default-3": "k3"}


def test_what_cannot_be_written_leaves_the_profiles_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(tmp_path, "default", Profile(bootstrap="a:1"))

    def fsync(descriptor: int) -> None:
        assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConfigError, match="the disk is full"):
        write_profile(tmp_path, "other", Profile(bootstrap="a:1"))
    assert list(read_profiles(tmp_path)) == ["default"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK_NAME, FILE_NAME]


def test_a_file_of_profiles_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_profile(tmp_path, "default", Profile(bootstrap="a:1", access_key="k"))
    (tmp_path / FILE_NAME).chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        read_profiles(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"profiles": []}',
        '{"profiles": {"a": {"what": 1}}}',
        '{"profiles": {"a": {"bootstrap": 1}}}',
    ],
)
def test_a_file_that_has_no_profiles_is_refused(tmp_path: Path, content: str) -> None:
    write_profile(tmp_path, "default", None)
    (tmp_path / FILE_NAME).write_text(content)

    with pytest.raises(ConfigError, match="is no file of profiles"):
        read_profiles(tmp_path)
