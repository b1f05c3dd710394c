"""Users and rights as this broker knew them last, on disk: a start begins with them.

Otherwise a broker that starts would be open until a controller has told it, and one that is told by
a controller that lags behind would be open for as long. The file has digests of secret keys, no
secrets. docs/format/security.md has the content.
"""

import asyncio
import logging

from paceline.errors import BadRequestError, CorruptLogError, StorageError
from paceline.platform.ports import Disk, read_whole
from paceline.platform.runtime import spawn
from paceline.platform.sealed import seal, unseal
from paceline.wire.users import Security
from paceline_broker.storage.durable_files import write_durably_later

log = logging.getLogger("paceline.security")

FILE = "security.json"
VERSION = 1


class SecurityFile:
    """Owner of the file; used on the event loop only."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._path = f"{data_dir}/{FILE}"
        self._wanted: Security | None = None
        self._task: asyncio.Task[None] | None = None

    def load(self) -> Security:
        """What was saved last. Raises CorruptLogError if the file is damaged: it is not guessed
        whether rights were on."""
        if not self._disk.exists(self._path):
            return Security()
        content = read_whole(self._disk, self._path)
        try:
            document = unseal(content)
            if document["version"] != VERSION:
                raise CorruptLogError(f"version {document['version']}, this one knows {VERSION}")
            return Security.from_json(document["security"])
        except (CorruptLogError, BadRequestError, KeyError, TypeError) as error:
            raise CorruptLogError(
                f"{self._path} is damaged ({error}); delete it, and the controllers tell this"
                " broker anew"
            ) from error

    def save(self, security: Security) -> None:
        """Begin to write it. A failure is logged: the state in memory counts."""
        self._wanted = security
        if self._task is None or self._task.done():
            self._task = spawn(self._write_all(), name="security-file")

    async def close(self) -> None:
        """Let the write that was begun end."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _write_all(self) -> None:
        while self._wanted is not None:
            security, self._wanted = self._wanted, None
            content = seal({"version": VERSION, "security": security.to_json()})
            try:
                await write_durably_later(self._disk, self._path, content)
            except StorageError as error:
                log.error("security_not_saved", extra={"fault": error.message})
