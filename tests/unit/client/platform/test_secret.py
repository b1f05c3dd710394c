"""The cluster secret: only its owner may read the file."""

from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.platform.runtime import SeededRandom
from paceline.platform.secret import ClusterSecrets, make_secret


def test_made_secret_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"

    made = make_secret(str(path), SeededRandom("secret"))

    assert ClusterSecrets.read(str(path)).all == made.all
    assert path.stat().st_mode & 0o777 == 0o600


def test_existing_secret_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "secret")

    first = make_secret(path, SeededRandom("1"))

    assert make_secret(path, SeededRandom("2")).all == first.all


def test_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("x" * 32)
    path.chmod(0o640)

    with pytest.raises(ConfigError, match="mode 0640.*chmod 600"):
        ClusterSecrets.read(str(path))


def test_short_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("  short \n")
    path.chmod(0o600)

    with pytest.raises(ConfigError, match="has 5 bytes; it needs at least 16"):
        ClusterSecrets.read(str(path))


def test_missing_secret_or_folder_in_its_place_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ClusterSecrets.read(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="not a regular file"):
        ClusterSecrets.read(str(tmp_path))


OLD, NEW = b"the old secret of a cluster", b"the new secret of a cluster"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_each_line_is_a_secret_and_the_first_one_is_used(tmp_path: Path) -> None:
    path = write(tmp_path / "secret", b" " + OLD + b"\r\n\n" + NEW)

    secrets = ClusterSecrets.read(str(path))

    assert (secrets.all, secrets.current) == ((OLD, NEW), OLD)


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "secret", OLD)
    secrets = ClusterSecrets.read(str(path))
    found = [(secrets.reload(), secrets.all)]

    for content in (OLD + b"\n" + NEW, NEW + b"\n" + OLD, NEW):
        write(path, content)
        found.append((secrets.reload(), secrets.all))

    assert found == [
        (False, (OLD,)),
        (True, (OLD, NEW)),
        (True, (NEW, OLD)),
        (True, (NEW,)),
    ]


@pytest.mark.parametrize(
    "content",
    [b"", b"short", OLD + b"\nshort", b"\n".join([OLD] * 9), OLD + b"x" * 5000],
    ids=["empty", "short", "short second", "many", "long"],
)
def test_a_file_that_is_no_good_changes_nothing_and_is_told(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "secret", OLD)
    secrets = ClusterSecrets.read(str(path))

    write(path, content)
    assert not secrets.reload()
    path.chmod(0o644)
    assert not secrets.reload()
    path.unlink()
    assert not secrets.reload()

    assert secrets.all == (OLD,)
    assert [record.message for record in caplog.records] == ["cluster_secrets_not_reloaded"] * 3
    assert not any(OLD.decode() in str(vars(record)) for record in caplog.records)
