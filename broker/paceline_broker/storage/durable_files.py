"""Small files that are replaced as a whole while the event loop goes on."""

from paceline.platform.ports import Disk, open_anew, temporary_name


async def write_durably_later(disk: Disk, path: str, content: bytes) -> None:
    """`write_durably` with its syncs off the event loop. One at a time for a file."""
    file = open_anew(disk, temporary_name(path))
    try:
        disk.writev(file, [content], 0)
        await disk.sync(file)
    finally:
        file.close()
    disk.rename(temporary_name(path), path)
    await disk.sync_folder_later(path.rpartition("/")[0])
