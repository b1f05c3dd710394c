"""Records of the audit as lines, and what a torn file still says."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from paceline.wire.calls.audit import AuditRecord, json_of, read_lines, record_of
from paceline.wire.rights import Decision

texts = st.text(max_size=20)
records = st.builds(
    AuditRecord,
    unix_ms=st.integers(0, 2**60),
    node=texts,
    sequence=st.integers(0, 2**60),
    user=texts,
    door=st.sampled_from(["http", "stream"]),
    call=texts,
    rule=texts,
    decision=st.sampled_from(Decision),
    outcome=texts,
    dropped=st.integers(0, 9),
)


def lines(found: list[AuditRecord]) -> bytes:
    return b"".join(json_of(record) + b"\n" for record in found)


@given(st.lists(records, max_size=5))
def test_what_was_written_is_read(written: list[AuditRecord]) -> None:
    content = lines(written)

    assert read_lines(content) == (written, len(content))


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_of_a_file_that_was_cut_the_whole_lines_are_read(
    written: list[AuditRecord], data: st.DataObject
) -> None:
    content = lines(written)
    cut = data.draw(st.integers(0, len(content)))

    found, taken = read_lines(content[:cut])

    assert found == written[: len(found)]
    assert content[:taken] == lines(found)
    assert b"\n" not in content[taken:cut]


@given(st.lists(records, min_size=1, max_size=5), st.binary(max_size=30), st.data())
def test_what_a_power_loss_has_left_in_between_hides_no_other_line(
    written: list[AuditRecord], junk: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(written)))
    torn = lines(written[:at]) + junk + b"\n" + lines(written[at:])

    found, _ = read_lines(torn)

    assert [record for record in found if record in written] == written


@given(st.binary())
def test_any_bytes_are_read_and_nothing_is_raised(content: bytes) -> None:
    _, taken = read_lines(content)

    assert taken <= len(content)
    assert record_of(content) is None or content.startswith((b"{", b" ", b"\t", b"\r", b"\n"))


def test_a_record_has_no_field_for_a_body_or_a_secret() -> None:
    names = {field.name for field in msgspec.structs.fields(AuditRecord)}

    assert names == {
        *("unix_ms", "node", "sequence", "user", "access_key", "source", "door", "call", "about"),
        *("action", "resource", "decision", "rule", "outcome", "request_id"),
        *("times", "dropped"),
    }
