"""What a folder store needs of the operating system: durable directory entries, copies, an ordered walk, and errors by
name.

Knows files, not objects: it neither decides who wins nor what an etag is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG

from syncline.errors import StoreDenied, StoreMisused, StoreUnavailable
from syncline.store.bounds import checked_key

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISUSED = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EFBIG}
_NO_LINKS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_CANNOT_COPY_RANGE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}


@contextmanager
def file_errors(key: str, url: str) -> Generator[None]:
    """Turn the operating system's errors into the port's."""
    try:
        yield
    except OSError as error:
        what = f"{key} in {url}: {error.strerror}"
        if error.errno in _FULL:
            raise StoreUnavailable(
                f"{what}: the disk is full; nothing was changed, free space or grow the volume"
            ) from error
        if error.errno in _DENIED:
            raise StoreDenied(f"{what}; give this process the permission, or open the store by another user") from error
        if error.errno in _MISUSED:
            raise StoreMisused(
                f"{what}; no key may be a folder of another key, or larger than the file system allows"
            ) from error
        if error.errno in _NO_LINKS:
            raise StoreMisused(
                f"{what}: the file system has no hard links; put the store on a POSIX file system or on S3"
            ) from error
        raise StoreUnavailable(f"{what}; check the disk or the mount") from error


def sync_folder(folder: Path, fsync: Callable[[int], None]) -> None:
    """Make the folder's entries durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def copy_file(source: int, target: int, size: int) -> None:
    """Copy `size` bytes from the beginning of one open file to another, inside the kernel where it can share or move
    blocks."""
    done, shared = 0, True
    while done < size:
        try:
            if shared:
                count = os.copy_file_range(source, target, size - done, done)
            else:
                count = os.sendfile(target, source, done, size - done)
        except OSError as error:
            if not shared or error.errno not in _CANNOT_COPY_RANGE:
                raise
            shared = False
            continue
        if count == 0:
            raise StoreMisused(f"the source ended at byte {done} of {size}: it was cut while it was copied")
        done += count


def walk_after(root: Path, prefix: str, after: str) -> Iterator[tuple[str, os.stat_result]]:
    """Files below `root` whose key begins with `prefix` and sorts after `after`, in the byte order of their keys.

    Reads one folder at a time and skips folders that cannot hold such a key. Names that are no keys (a folder store's
    own, files that somebody dropped there) are passed over; what vanishes during the walk is too, and so are links: one
    may lead out of the root, or round in a circle.
    """
    start = prefix[: prefix.rfind("/") + 1]
    if link_above(root, start) is not None:
        return
    yield from _walk(root, start, prefix, after)


def _walk(root: Path, folder: str, prefix: str, after: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        # A folder sorts where its children do: "a-b" < "a/x" < "a0".
        with os.scandir(root / folder) as found:
            entries = sorted((e.name + "/" if e.is_dir() else e.name) for e in found if not e.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in entries:
        key = folder + name
        if not _is_key(key.removesuffix("/")):
            continue
        if name.endswith("/"):
            reaches = key.startswith(prefix) or prefix.startswith(key)
            if reaches and (key > after or after.startswith(key)):
                yield from _walk(root, key, prefix, after)
        elif key.startswith(prefix) and key > after:
            try:
                stat = (root / key).lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if S_ISREG(stat.st_mode):
                yield key, stat


def link_above(root: Path, key: str) -> Path | None:
    """The first folder on the way from the root to a key that is a link; None when the way stays below the root."""
    at = root
    for name in key.split("/")[:-1]:
        at /= name
        if at.is_symlink():
            return at
    return None


def _is_key(key: str) -> bool:
    try:
        checked_key(key)
    except StoreMisused:
        return False
    return True
