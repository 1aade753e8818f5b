"""Locks between processes, on file systems that have flock and on those that do not.

Owns the choice between the two. Knows nothing of what is locked.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import filelock

log = logging.getLogger(__name__)

# What flock answers on network and FUSE mounts that lack it (flock(2), nfs(5) "nolock").
NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
# A marker file outlives a killed holder. What is done under a lock takes far less than this,
# unless the caller says otherwise.
STALE_SECONDS = 60.0

_soft_folders: set[str] = set()


@contextlib.contextmanager
def locked(path: Path, *, timeout: float, stale: float = STALE_SECONDS) -> Iterator[None]:
    """Hold the lock file at `path`, whose folder exists.

    Args:
        path: the lock file; stays when the lock is released, unless flock is missing.
        timeout: seconds to wait for another holder; negative waits for ever.
        stale: seconds after which a marker file counts as left by a dead process. A native
            lock dies with its process and needs none.

    Raises:
        OSError: the folder cannot be written, or `timeout` has passed (TimeoutError).
    """
    import filelock

    folder = str(path.parent)
    lock: filelock.BaseFileLock | None = None
    if folder not in _soft_folders:
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=timeout)
        except (OSError, NotImplementedError) as error:
            if isinstance(error, TimeoutError) or not _flock_is_missing(error):
                raise
            log.info("%s has no flock (%s); marker files are used there", folder, error)
            _soft_folders.add(folder)
            lock = None
    if lock is None:
        lock = _acquire_marker(path.with_suffix(".marker"), timeout, stale)
    try:
        yield
    finally:
        lock.release()


def _flock_is_missing(error: OSError | NotImplementedError) -> bool:
    return isinstance(error, NotImplementedError) or error.errno in NO_FLOCK


def _acquire_marker(path: Path, timeout: float, stale: float) -> filelock.BaseFileLock:
    """Take a lock that is the existence of a file (O_EXCL, which NFS has had since version 3)."""
    import filelock

    end = time.monotonic() + timeout
    while True:
        lock = filelock.SoftFileLock(path)
        try:
            lock.acquire(timeout=0.05)
            return lock
        except filelock.Timeout:
            _break_stale(path, stale)
            if timeout >= 0 and time.monotonic() > end:
                raise


def _break_stale(path: Path, stale: float) -> None:
    """Remove a marker that is older than `stale`; of several who try, one succeeds."""
    with contextlib.suppress(FileNotFoundError):
        age = time.time() - path.stat().st_mtime
        if age > stale:
            aside = path.with_name(f"{path.name}.{os.getpid()}.stale")
            os.rename(path, aside)
            if time.time() - aside.stat().st_mtime <= stale:
                # Another process broke it first and this is its new marker: give it back.
                with contextlib.suppress(FileExistsError):
                    os.link(aside, path)
            aside.unlink()
            log.warning("lock %s was %.0f s old and is taken from a dead process", path, age)
