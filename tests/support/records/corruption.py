"""What tests of corruption share with others."""

from crc32c import crc32c

from paceline.records.header import (
    HEADER_BYTES,
    BatchHeader,
    pack_header,
)


def sealed(payload: bytes, header: BatchHeader, **fields: int) -> bytes:
    """A batch of this payload whose size and CRCs are right."""
    payload += bytes(-len(payload) % 8)
    fields = {"payload_raw_bytes": len(payload)} | fields
    header = header._replace(
        size_bytes=HEADER_BYTES + len(payload), payload_crc32c=crc32c(payload), **fields
    )
    return pack_header(header) + payload
