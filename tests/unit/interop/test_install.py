"""What `interop.install` says when it cannot build a client."""

import re

import pytest
from interop.install import Tool, check, installed
from interop.java import InteropError


async def test_a_missing_toolchain_is_one_sentence_that_names_the_package() -> None:
    tool = Tool(
        title="Cobol", version_of=("no-such-cobol", "-v"), at_least=(1, 2), package="gnucobol"
    )

    with pytest.raises(InteropError) as caught:
        await check(tool)

    assert str(caught.value) == "interop needs Cobol 1.2 or newer: apt-get install gnucobol"


async def test_a_toolchain_that_is_too_old_says_which_was_found() -> None:
    tool = Tool(title="Echo", version_of=("echo", "v1.9.3"), at_least=(1, 10), package="coreutils")

    with pytest.raises(InteropError, match=re.escape("(found: v1.9.3)")):
        await check(tool)


async def test_a_toolchain_that_is_new_enough_is_taken() -> None:
    await check(
        Tool(title="Echo", version_of=("echo", "go1.24.1"), at_least=(1, 24), package="coreutils")
    )


async def test_an_unknown_client_is_told_with_those_that_are_known() -> None:
    with pytest.raises(InteropError, match="no client 'cobol'; known: .*python_grpc"):
        await installed("cobol")
