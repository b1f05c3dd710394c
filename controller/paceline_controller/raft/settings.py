"""Pure: the times and limits of the Raft layer, with the reason of each."""

from dataclasses import dataclass

COMMAND_BYTES_MAX = 1024 * 1024
"""One command; controller commands are a few hundred bytes."""

APPEND_BYTES = 2 * 1024 * 1024
"""Entries of one append message. Above COMMAND_BYTES_MAX, so that the library never splits an
entry: its code for split entries can end a transmission twice."""

FRAME_BYTES_MAX = APPEND_BYTES + COMMAND_BYTES_MAX + 64 * 1024
"""The batch may overshoot by one entry; the rest is for heads of entries."""

SEGMENT_BYTES = 4 * 1024 * 1024
"""Of the journal. Compaction drops whole segments: about 15,000 commands of a few hundred bytes."""

SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
SNAPSHOT_CHUNK_BYTES = 256 * 1024

HANDSHAKE_BYTES_MAX = 8192
"""Nothing larger is read from a peer that has not proved itself."""

PROPOSALS_MAX = 10_000
"""Waiting proposals of one node; beyond it 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Times in milliseconds. The library demands election_min > 3 * append."""

    append_ms: int = 100
    """Heartbeat of the leader."""

    election_min_ms: int = 400
    election_max_ms: int = 800
    """A silent leader is missed after a random time in between, on a machine that is not busy
    (`Pace`). Heartbeats wait for no fsync (`Outbox`); a closed link counts at once
    (`suspicion_...`)."""

    election_stretch_max: int = 4
    """Where signs of life come late, the three times of elections are up to so many times as long:
    a paused leader is missed within 3.2 s at most."""

    pace_window_ms: int = 30_000
    """The longest gap between two signs of life counts for so long."""

    vote_patience_ms_max: int = 3_000
    """A vote is given time by what its own fsync took, up to this: twice an fsync of 1.5 s."""

    suspicion_min_ms: int = 30
    suspicion_max_ms: int = 150
    """After the link to the leader closed: random wait before asking for a pre-vote. Pre-vote makes
    a false alarm harmless, the spread keeps two followers from asking together."""

    candidacy_min_ms: int = 100
    """First retry after a lost or split vote; doubles with each attempt up to the election timeout.
    Counted from when the candidate's own vote is durable (`ElectionRules.mind_vote`)."""

    leader_fallback_ms: int = 800
    """A leader that no majority answered for so long steps down (the library's default is 30 s)."""

    candidate_tick_ms: int = 20
    idle_tick_ms: int = 300
    """Longest sleep of the ticker of a follower or leader; messages and proposals tick at once. It
    is well above `append_ms`: messages would be just behind it."""

    compact_after_entries: int = 50_000
    """Snapshot and cut when the journal holds so many entries. Rare on purpose: fewer passes
    through the library's weakest path."""

    retain_entries: int = 1_000
    """Entries kept behind a snapshot, so that a briefly absent follower needs no snapshot."""

    segment_bytes: int = SEGMENT_BYTES
    """A segment of the journal that has become so large is followed by another."""

    farewell_ms: int = 500
    """A leader that is to leave leads on for so long once its successors vote: where they are,
    brokers and clients that know nobody else hear from it."""

    append_bytes: int = APPEND_BYTES
    """Entries of one append message, and one entry more."""

    snapshot_chunk_bytes: int = SNAPSHOT_CHUNK_BYTES
    """Of one message of a snapshot on its way to a follower."""

    silence_ms: int = 1_500
    """A link that carried no frame for so long, and a round of pings more, is dropped; counted in
    rounds of pings, so that a loop that stood takes nobody for silent."""

    ping_ms: int = 400
    dial_timeout_ms: int = 1_000
    handshake_timeout_ms: int = 2_000
    redial_min_ms: int = 50
    redial_max_ms: int = 200
    dial_back_ms: int = 2_000
    """The controller with the lower id dials; after so long without a link the other one does too:
    the lower one may not know yet where the higher one is."""
    digest_every_entries: int = 64
    """Digests of the machine are compared at indices that this divides (INV-10)."""

    slow_sync_ms: int = 200
    """An fsync above this is logged: it delays commands and votes."""
