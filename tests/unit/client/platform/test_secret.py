"""The cluster secret: only its owner may read the file."""

from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.platform.runtime import SeededRandom
from paceline.platform.secret import make_secret, read_secret


def test_made_secret_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"

    made = make_secret(str(path), SeededRandom("secret"))

    assert read_secret(str(path)) == made
    assert path.stat().st_mode & 0o777 == 0o600


def test_existing_secret_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "secret")

    first = make_secret(path, SeededRandom("1"))

    assert make_secret(path, SeededRandom("2")) == first


def test_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("x" * 32)
    path.chmod(0o640)

    with pytest.raises(ConfigError, match="mode 0640.*chmod 600"):
        read_secret(str(path))


def test_short_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("  short \n")
    path.chmod(0o600)

    with pytest.raises(ConfigError, match="has 5 bytes; it needs at least 16"):
        read_secret(str(path))


def test_missing_secret_or_folder_in_its_place_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="not a regular file"):
        read_secret(str(tmp_path))
