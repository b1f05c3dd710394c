"""Where one member of a broadcasting group stands, in a file of its own on its machine.

RocketMQ's LocalFileOffsetStore: every member gets every message, so the brokers keep nothing. The
file is sealed and replaced as a whole, every `persist_interval_ms` and at close; the copy before it
is kept and used when the newer one is damaged. A crash repeats what was consumed since the last
write; nothing is skipped.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from paceline.consumer.offsets.group_offsets import OnReset
from paceline.consumer.offsets.start_positions import StartPosition, StartPositions
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.consumer.queues.segments import GroupPosition
from paceline.errors import ConfigError, CorruptLogError, StorageError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.ports import Disk, File, read_whole
from paceline.platform.sealed import seal, unseal
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId

log = logging.getLogger("paceline.client")

FILE = "offsets.json"
BACKUP = "offsets.bak.json"
VERSION = 1


class LocalOffsets:
    """The `OffsetStore` of one member of one broadcasting group; owner of its folder."""

    def __init__(
        self,
        cluster: Cluster,
        links: GroupLinks,
        disk: Disk,
        *,
        folder: str,
        client_id: str,
        group: str,
        start: StartPosition,
        timeout_ms: int,
        persist_interval_ms: int,
    ) -> None:
        self._cluster = cluster
        self._disk = disk
        self._client_id = client_id
        self._members_folder = f"{folder}/{quote(client_id, safe='')}"
        self._group = group
        self._start = start
        self._starts = StartPositions(
            cluster, links, group=group, start=start, timeout_ms=timeout_ms
        )
        self._persist_interval_ms = persist_interval_ms
        self._offsets: dict[QueueKey, int] | None = None  # None until the file was read
        self._topics_in_file: frozenset[TopicId] = frozenset()
        """Topics this member had consumed already when it started."""
        self._is_changed = False
        self._written: bytes | None = None
        """What the file holds: the next backup."""
        self._persisted_at = 0.0
        self._lock: File | None = None
        self._writing = asyncio.Lock()

    @property
    def path(self) -> str:
        """The file."""
        return f"{self._folder}/{FILE}"

    @property
    def _folder(self) -> str:
        """By the full name of the group: two namespaces may have one of this name."""
        return f"{self._members_folder}/{self._cluster.namespace.full_group(self._group)}"

    async def start(self) -> None:
        """Take the folder and read the file. ConfigError, CorruptLogError, StorageError."""
        self._topics_in_file = frozenset(key.topic_id for key in self._read())
        self._starts.subscribed()

    async def opened(self, key: QueueKey) -> ProcessQueue:
        offsets = self._read()
        if key not in offsets:
            offset = await self.start_of(key)
            offsets[key] = offset
            self._is_changed = True
        return ProcessQueue(key, offsets[key], generation=0)

    async def start_of(self, key: QueueKey) -> int:
        start = self._starts.on(key, came_later=key.topic_id in self._topics_in_file)
        return await self._starts.offset_of(key, start)

    async def standing(self, keys: Sequence[QueueKey]) -> list[GroupPosition]:
        offsets = self._read()
        return [GroupPosition(offsets.get(key)) for key in keys]

    def goes_on_in(self, key: QueueKey) -> None:
        self._starts.goes_on_in(key)

    async def commit(self, queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
        """Into the file when it is time for it; until then `committed` stays as it was."""
        offsets = self._read()
        for queue in queues:
            if queue.commit_offset > offsets.get(queue.key, -1):
                offsets[queue.key] = queue.commit_offset
                self._is_changed = True
        now = asyncio.get_running_loop().time()
        if now - self._persisted_at >= self._persist_interval_ms / 1000:
            noted = [(queue, offsets[queue.key]) for queue in queues]
            await self._persist()
            for queue, offset in noted:
                queue.committed = max(queue.committed, offset)

    async def look_for_resets(self, queues: Sequence[ProcessQueue], on_reset: OnReset) -> None:
        """Nobody but this member knows its offsets."""

    async def closed(self, queue: ProcessQueue) -> None:
        """It is in the file with the next write, which `close` makes."""

    def abandoned(self, queue: ProcessQueue) -> None:
        """Its offset is as it was."""

    async def close(self) -> None:
        """Write what is not written. Raises StorageError."""
        try:
            if self._offsets is not None:
                await self._persist()
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    # -- the file ---------------------------------------------------------------------------------

    async def _persist(self) -> None:
        async with self._writing:
            if not self._is_changed:
                return
            assert self._offsets is not None
            self._is_changed = False
            content = seal(self._document(self._offsets))
            try:
                if self._written is not None:
                    await self._replace(BACKUP, self._written)
                await self._replace(FILE, content)
            except BaseException:  # a cancel too: `close` has to write it
                self._is_changed = True
                raise
            self._written = content
            self._persisted_at = asyncio.get_running_loop().time()

    async def _replace(self, name: str, content: bytes) -> None:
        """A crash leaves the old content or the new, never a mix."""
        disk, temporary = self._disk, f"{self._folder}/.{name}.new"
        file = disk.open(temporary, create=True)
        try:
            disk.truncate(file, 0)
            disk.writev(file, [content], 0)
            await disk.sync(file)
        finally:
            file.close()
        disk.rename(temporary, f"{self._folder}/{name}")
        await disk.sync_folder_later(self._folder)

    def _document(self, offsets: dict[QueueKey, int]) -> dict[str, Any]:
        view = self._cluster.view
        return {
            "version": VERSION,
            "cluster_id": "" if view is None else view.cluster_id,
            "offsets": [[*key, offset] for key, offset in sorted(offsets.items())],
        }

    def _read(self) -> dict[QueueKey, int]:
        """The offsets; the first call takes the folder and reads the file."""
        if self._offsets is not None:
            return self._offsets
        self._disk.make_folder(self._folder)
        try:
            self._lock = self._disk.lock_folder(self._folder)
        except StorageError as error:
            raise ConfigError(
                f"another process consumes as client {self._client_id!r} of this broadcasting group"
                f" ({self._folder} is taken): give each member a client_id of its own"
            ) from error
        for name in (FILE, BACKUP):
            content = self._content(f"{self._folder}/{name}")
            if content is None:
                continue
            try:
                self._offsets = self._parsed(content)
            except (CorruptLogError, ValueError, KeyError, TypeError) as error:
                log.error(
                    "local_offsets_damaged",
                    extra={"path": f"{self._folder}/{name}", "fault": repr(error)},
                )
                continue
            self._written = content
            return self._offsets
        if self._disk.exists(self.path):
            raise CorruptLogError(
                f"{self.path} is damaged, and so is its copy: delete both to begin anew at"
                f" {self._start.where!r}, or put a good copy there"
            )
        self._offsets = {}
        return self._offsets

    def _content(self, path: str) -> bytes | None:
        if not self._disk.exists(path):
            return None
        return read_whole(self._disk, path)

    def _parsed(self, content: bytes) -> dict[QueueKey, int]:
        document = unseal(content)
        if document["version"] != VERSION:
            raise CorruptLogError(f"version {document['version']}, this one knows {VERSION}")
        view = self._cluster.view
        if view is not None and document["cluster_id"] not in ("", view.cluster_id):
            raise ConfigError(
                f"{self.path} has offsets of cluster {document['cluster_id']}, this is"
                f" {view.cluster_id}: delete the file to begin anew, or give another offsets_folder"
            )
        return {
            QueueKey(TopicId(topic_id), GroupName(group), QueueId(queue)): int(offset)
            for topic_id, group, queue, offset in document["offsets"]
        }
