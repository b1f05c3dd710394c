"""Pure: what an entry of the replicated log is.

Three kinds exist. The library knows two more, membership and code version, whose content is a
pickle: those are refused wherever entries come in or are applied (F6).
"""

from typing import TypeAlias

Entry: TypeAlias = tuple[bytes, int, int]
"""(command, index, term): the library's own shape of a log entry."""

COMMAND_ENTRY = b"\x00"
"""First byte of an entry with a command of ours: the library's _COMMAND_TYPE.REGULAR."""

NO_OP_ENTRY = b"\x01"
"""The whole entry that begins a term: the library's _COMMAND_TYPE.NO_OP."""

MEMBERS_ENTRY = b"\x10"
"""First byte of an entry with a generation of the member list (`members.py`); unknown to the
library, which hands every command to our override."""
