"""Small documents with a checksum: any flipped bit is found."""

import pytest

from paceline.errors import CorruptLogError
from paceline.platform.sealed import seal, unseal

DOCUMENT = {"store_id": "ab12", "incarnation": 7, "cluster_id": None, "clean_shutdown": False}


def test_what_was_sealed_comes_back() -> None:
    assert unseal(seal(DOCUMENT)) == DOCUMENT


def test_every_flipped_bit_is_found() -> None:
    content = seal(DOCUMENT)
    for index in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[index // 8] ^= 1 << index % 8
        with pytest.raises(CorruptLogError):
            unseal(bytes(flipped))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b'{"crc32c": "x"}', b"\xff"])
def test_bytes_that_were_never_sealed_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptLogError):
        unseal(content)
