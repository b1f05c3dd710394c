"""What every node does before its loop runs."""

import resource

from paceline.node_process import raise_file_limit


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
