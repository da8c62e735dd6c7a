"""Loop-mounted ext4 disks for brokers: they lose power or run out of space.

Needs root and mkfs.ext4 (Debian package e2fsprogs).
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FS_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING = struct.pack("I", 2)


class Disk:
    """An ext4 file system in an image file, mounted at `place`."""

    def __init__(self, place: Path, size_bytes: int) -> None:
        self.place = place
        self._image = place.with_name(f"{place.name}.img")
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        place.mkdir()
        self.mount()
        (place / "lost+found").rmdir()

    def mount(self) -> None:
        # With this commit interval, only synced data reaches the disk during a test.
        options = "loop,commit=300"
        _run("mount", "-t", "ext4", "-o", options, str(self._image), str(self.place))

    def unmount(self) -> None:
        _run("umount", str(self.place))

    def lose_power(self) -> None:
        """Drop all unsynced data. Every later write fails."""
        with self._directory() as directory:
            fcntl.ioctl(directory, FS_IOC_SHUTDOWN, _WITHOUT_FLUSHING)

    def fill(self) -> None:
        chunk = 1 << 20
        with (self.place / "balloon").open("wb") as file:
            while chunk >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), chunk)
                except OSError:
                    chunk //= 2

    def empty(self) -> None:
        """Free the space that `fill` took, if any."""
        (self.place / "balloon").unlink(missing_ok=True)
        # Sync, or the file would return after a power loss.
        with self._directory() as directory:
            os.fsync(directory)

    @contextmanager
    def _directory(self) -> Iterator[int]:
        directory = os.open(self.place, os.O_RDONLY)
        try:
            yield directory
        finally:
            os.close(directory)


class DisksUnavailable(Exception):
    """This machine cannot mount disks. The message has the reason."""


@contextmanager
def mounted(places: Sequence[Path], size_bytes: int) -> Iterator[list[Disk]]:
    """Create one disk per directory; unmount all of them at the end."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        raise DisksUnavailable("needs root, and mkfs.ext4 from the Debian package e2fsprogs")
    disks: list[Disk] = []
    try:
        for place in places:
            try:
                disks.append(Disk(place, size_bytes))
            except AssertionError as error:
                raise DisksUnavailable(str(error)) from None
        yield disks
    finally:
        for disk in disks:
            subprocess.run(["umount", str(disk.place)], timeout=60, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
