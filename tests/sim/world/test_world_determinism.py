"""The same seed is the same run, whatever hash seed, heap or world before (`make determinism`)."""

from paceline_chaos.world.determinism import WAYS, digests_of


def test_a_world_has_one_digest_in_every_way_of_running_it() -> None:
    digests = digests_of(3, load_ms=3_000)

    assert len(digests) == len(WAYS)
    assert len(set(digests.values())) == 1, digests


def test_another_seed_is_another_run() -> None:
    one, other = digests_of(5, load_ms=1_000), digests_of(6, load_ms=1_000)

    assert set(one.values()).isdisjoint(other.values())
