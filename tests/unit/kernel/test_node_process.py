"""What every node does before its loop runs."""

import gc
import resource

from paceline.node_process import raise_file_limit, settle_heap


def test_the_soft_limit_of_open_files_becomes_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[0]), hard))
    try:
        raise_file_limit()
        soft, still_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert soft == min(hard, 1_048_576)
    assert still_hard == hard


def test_full_collections_pass_over_what_was_there_when_a_node_began_to_serve() -> None:
    frozen = gc.get_freeze_count()
    settle_heap()
    try:
        assert gc.get_freeze_count() > frozen + 10_000
        assert len(gc.get_objects()) < 1_000
    finally:
        gc.unfreeze()
