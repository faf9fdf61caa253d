"""The blocking operations of a directory bucket, one worker call each, and their order of system calls.

A name appears only with its complete, synced content. A write that returned is durable, including the names of new
directories. A read of a complete object returns only durable bytes, because its reader acts on them (it may delete the
local copy). A conditional write compares under its key's lock. Errors are `OSError` or those of
`coldstore.object_store`. Temporary files have the writer's name in their names, and the writer holds a lock of that
name. The first write of a process removes the files of writers whose lock it can take. If a file of a live writer is
removed, only that write fails.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing

from crc32c import crc32c

from coldstore.object_store import (
    ChecksumRefused,
    ConditionalConflict,
    Got,
    ObjectInfo,
    ObjectMissing,
    PreconditionFailed,
    StoreUnavailable,
    Upload,
)
from coldstore.stores.limits import SYSTEM_DIRECTORY, resolve_range
from logformat.errors import InvalidRequest
from seams.clock import Clock
from seams.files.disk import Disk, File, Lock
from seams.files.part_writer import PartWriter
from seams.rng import Rng

SMALL_BYTES_MAX = 256 << 10  # roots are ≤ 64 KiB; hashing 256 KiB takes 0.25 ms
LOCK_STRIPES = 256  # lock files that all keys share; they are never deleted
_VANISHED_MAX = 64  # retries if a directory disappears between mkdir and link; the next time is an error


class DirectoryFiles:
    """Objects as files below `root` (absolute). Methods may run in several threads. `prepare` is called once, before
    the first write."""

    def __init__(self, disk: Disk, root: str, rng: Rng, lock_wait_s: float, clock: Clock) -> None:
        self.root = root
        self._disk = disk
        self._system = f"{root}/{SYSTEM_DIRECTORY}"
        self._rng = rng
        self._lock_wait_s = lock_wait_s
        self._now_s = clock.monotonic_s
        self._writer = ""
        self._writer_lock: Lock | None = None
        # Directories whose names are known to be durable, up to the bucket's own directory. When an object is created,
        # all names are synced again, because other processes may remove and recreate directories of segments.
        self._durable: set[str] = set()
        self._formatted = False  # this process has seen the system directory

    # -- reading ---------------------------------------------------------------------------------------------------

    def open(self, key: str) -> File:
        """The object's file. Raises ObjectMissing."""
        path = f"{self.root}/{key}"
        found = self._disk.stat(path)
        if found is not None and not found.is_dir:
            try:
                return self._disk.open(path)
            except (FileNotFoundError, NotADirectoryError):
                pass  # deleted meanwhile
        self._check_bucket()
        raise ObjectMissing(f"{key}: no such object in file://{self.root}")

    def read_whole(self, key: str, unless_etag: str | None = None) -> Got | None:
        """The complete object, which is durable. None if its ETag is `unless_etag`."""
        with closing(self.open(key)) as file:
            size = file.size()
            resolve_range(key, 0, None, size)
            data = file.read_at(0, size)
        if len(data) != size:
            raise StoreUnavailable(f"{key}: {len(data)} of {size} bytes could be read")
        etag = content_etag(data) if size <= SMALL_BYTES_MAX else size_etag(size)
        if etag == unless_etag and size <= SMALL_BYTES_MAX:
            return None
        # Between a writer's rename and its directory sync, a power cut can revert the name. After this sync the version
        # that was read, or a newer one, is durable.
        self._sync_names(key, all_parents=False)
        return Got(data, etag, size)

    def read_range(self, key: str, start: int, length: int | None) -> Got:
        """Bytes of an immutable object, as in `ObjectStore.get`."""
        with closing(self.open(key)) as file:
            size = file.size()
            start, given = resolve_range(key, start, length, size)
            data = file.read_at(start, given)
            etag = _etag_of(file, size)
        if len(data) != given:
            raise StoreUnavailable(f"{key}: {len(data)} of {given} bytes could be read at {start}")
        return Got(data, etag, size)

    def describe(self, key: str) -> ObjectInfo:
        """Size and ETag of an object, and the CRC32C of a small object."""
        with closing(self.open(key)) as file:
            size = file.size()
            if size > SMALL_BYTES_MAX:
                return ObjectInfo(key, size, size_etag(size))
            data = file.read_at(0, size)
        return ObjectInfo(key, size, content_etag(data), crc32c(data))

    def walk(self, prefix: str, directory: str = "") -> Iterator[ObjectInfo]:
        """Objects below `directory` ('' or with a final '/') in the byte order of complete keys, as in S3's
        listings."""
        entries = []
        self._check_bucket()
        for name in self._names(f"{self.root}/{directory}"):
            if not directory and name == SYSTEM_DIRECTORY:
                continue
            found = self._disk.stat(f"{self.root}/{directory}{name}")
            if found is not None:
                key = directory + name + ("/" if found.is_dir else "")
                if key.startswith(prefix) or (found.is_dir and prefix.startswith(key)):
                    entries.append((key, found))
        for key, found in sorted(entries, key=lambda entry: entry[0]):
            if found.is_dir:
                yield from self.walk(prefix, key)
            else:
                yield ObjectInfo(key, found.size, size_etag(found.size))

    def _check_bucket(self) -> None:
        """Raise StoreUnavailable if the bucket's directory was moved away or is not mounted. Without this check its
        objects would seem to be missing."""
        if self._formatted and self._disk.stat(self._system) is None:
            raise StoreUnavailable(f"file://{self.root}: the bucket's directory is gone; mount it or move it back")

    def _names(self, directory: str) -> Sequence[str]:
        try:
            return self._disk.list_dir(directory.rstrip("/"))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    # -- writing ---------------------------------------------------------------------------------------------------

    def write_segment(self, key: str, body: Upload) -> ObjectInfo:
        """Write, check and sync a file, then link it to the object's name. Raises InvalidRequest if the name is taken,
        ChecksumRefused."""
        temporary = self._temporary()
        try:
            with closing(self._create(temporary)) as file:
                _fill(PartWriter(file, self._now_s), key, body)
                etag = _etag_of(file, body.size)
                file.sync()
            if not self._link(temporary, key):
                raise InvalidRequest(f"PUT {key}: an object of that name exists; immutable objects never reuse a name")
            self._sync_names(key, all_parents=True)
        finally:
            self._drop(temporary)
        return ObjectInfo(key, body.size, etag, body.checksum())

    def write_root(self, key: str, data: bytes, if_match: str | None) -> str:
        """Compare the ETag and replace the object under the key's lock. Returns the new ETag. Raises
        PreconditionFailed, ConditionalConflict."""
        stripe = hashlib.sha256(key.encode()).digest()[0] % LOCK_STRIPES
        try:
            lock = self._disk.lock(f"{self._system}/locks/{stripe:02x}", wait_s=self._lock_wait_s)
        except FileNotFoundError:
            self._check_bucket()
            raise
        except BlockingIOError as held:
            raise ConditionalConflict(f"PUT {key}: other writers held its lock all the time; try again") from held
        try:
            found = self._current_etag(key)
            if found != if_match:
                raise PreconditionFailed(f"PUT {key}: expected ETag {if_match}, found {found}")
            self._replace(key, data, create=if_match is None)
        finally:
            lock.release()
        return content_etag(data)

    def replace_object(self, key: str, body: Upload, if_match: str) -> None:
        """Write, check and sync a file, then rename it over the object. Raises ObjectMissing, PreconditionFailed,
        ChecksumRefused.

        An object that is deleted at the same time reappears as an orphan."""
        temporary = self._temporary()
        try:
            with closing(self._create(temporary)) as file:
                _fill(PartWriter(file, self._now_s), key, body)
                file.sync()
            self.open(key).close()
            if (found := self._current_etag(key)) != if_match:
                raise PreconditionFailed(f"PUT {key}: expected ETag {if_match}, found {found}")
            self._disk.rename(temporary, f"{self.root}/{key}")
            self._sync_names(key, all_parents=False)
        finally:
            self._drop(temporary)

    def _current_etag(self, key: str) -> str | None:
        try:
            file = self.open(key)
        except ObjectMissing:
            return None
        with closing(file):
            return _etag_of(file, file.size())

    def _replace(self, key: str, data: bytes, *, create: bool) -> None:
        temporary = self._temporary()
        try:
            with closing(self._create(temporary)) as file:
                file.write_at(0, [data])
                file.sync()
            if not create:
                self._disk.rename(temporary, f"{self.root}/{key}")
            elif not self._link(temporary, key):
                raise PreconditionFailed(f"PUT {key}: another program created the object without taking its lock")
            self._sync_names(key, all_parents=create)
        finally:
            self._drop(temporary)

    def _link(self, temporary: str, key: str) -> bool:
        """Give the object its name. Returns False if the name is taken. Directories are created, also again if a
        deletion removed them."""
        path = f"{self.root}/{key}"
        parent = path.rpartition("/")[0]
        for attempt in range(1, _VANISHED_MAX + 1):
            try:
                if self._disk.stat(parent) is None:
                    self._disk.make_dirs(parent)
                self._disk.link(temporary, path)
                break
            except FileExistsError:
                if self._disk.stat(path) is not None:
                    return False
                in_the_way = self._disk.stat(parent)
                # The name is free: either a file has the name of a directory, or a directory was removed meanwhile.
                if attempt == _VANISHED_MAX or (in_the_way is not None and not in_the_way.is_dir):
                    raise
            except FileNotFoundError:
                if attempt == _VANISHED_MAX or self._disk.stat(temporary) is None:
                    raise
        return True

    def _sync_names(self, key: str, *, all_parents: bool) -> None:
        """Make the names of the object and its directories durable. With `all_parents` False, directories that are
        known to be durable are skipped."""
        above = f"{self.root}/{key}".rpartition("/")[0]
        self._disk.sync_dir(above)
        made_durable = []
        while above != self.root and (all_parents or above not in self._durable):
            made_durable.append(above)
            above = above.rpartition("/")[0]
            self._disk.sync_dir(above)
        self._durable.update(made_durable)

    # -- deleting --------------------------------------------------------------------------------------------------

    def unlink_all(self, keys: Sequence[str]) -> None:
        """Delete the objects that exist, durably. Empty directories are removed too."""
        parents: dict[str, None] = {}
        for key in keys:
            path = f"{self.root}/{key}"
            found = self._disk.stat(path)
            if found is not None and not found.is_dir:
                self._drop(path)
                parents[path.rpartition("/")[0]] = None
        for parent in parents:
            try:
                self._disk.sync_dir(parent)
            except FileNotFoundError:
                continue  # another process removed it
            self._prune(parent)

    def _prune(self, directory: str) -> None:
        """Remove empty directories upwards. rmdir refuses a directory that is not empty. A put creates a missing
        directory again."""
        while directory != self.root:
            self._durable.discard(directory)
            try:
                if self._disk.list_dir(directory):
                    return
                self._disk.remove_dir(directory)
            except OSError as failure:
                if failure.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    return
                raise
            directory = directory.rpartition("/")[0]

    # -- the system directory --------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the system directories durable, take this writer's lock, and remove the files of dead writers. This is
        called once, before the first write.
        """
        missing, above = [], self.root
        while above and self._disk.stat(above) is None:
            missing.append(above)
            above = above.rpartition("/")[0]
        for name in ("tmp", "locks"):
            self._disk.make_dirs(f"{self._system}/{name}")
        for directory in (*missing, above or "/"):
            self._disk.sync_dir(directory)
        self._formatted = True
        while self._writer_lock is None:
            self._writer = str(self._rng.uuid())
            path = self._writer_path(self._writer)
            lock = self._disk.lock(path, wait_s=self._lock_wait_s)
            if self._disk.stat(path) is None:
                lock.release()  # the file was removed before it was locked: take another name
            else:
                self._writer_lock = lock
        self._clean_after_dead_writers()

    def forget_writer(self) -> None:
        """Release the writer's lock. The next write needs `prepare` again."""
        if self._writer_lock is not None:
            lock, self._writer_lock = self._writer_lock, None
            self._drop(self._writer_path(self._writer))
            lock.release()

    def _clean_after_dead_writers(self) -> None:
        directory = f"{self._system}/tmp"
        litter: dict[str, list[str]] = {}
        for name in self._names(directory):
            litter.setdefault(name.partition(".")[0], []).append(name)
        litter.pop(self._writer, None)
        for writer, names in litter.items():
            try:
                lock = self._disk.lock(self._writer_path(writer))
            except BlockingIOError:
                continue  # the writer is alive
            for name in names:
                self._drop(f"{directory}/{name}")
            self._drop(self._writer_path(writer))
            lock.release()

    def _writer_path(self, writer: str) -> str:
        return f"{self._system}/tmp/{writer}.lock"

    def _temporary(self) -> str:
        return f"{self._system}/tmp/{self._writer}.{self._rng.uuid()}"

    def _create(self, temporary: str) -> File:
        """A new file to write. Raises StoreUnavailable if the bucket's directory is gone."""
        try:
            return self._disk.open(temporary, write=True, create=True, exclusive=True)
        except FileNotFoundError:
            self._check_bucket()
            raise

    def _drop(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return


def content_etag(data: bytes) -> str:
    """A strong tag: SHA-256 of the bytes. Roots have a unique commit id, so equal bytes are the same commit."""
    return f'"{hashlib.sha256(data).hexdigest()}"'


def size_etag(size: int) -> str:
    """A weak tag (RFC 9110 section 8.8.1) of the size. Roots are never compared by it."""
    return f'W/"{size}"'


def _etag_of(file: File, size: int) -> str:
    return size_etag(size) if size > SMALL_BYTES_MAX else content_etag(file.read_at(0, size))


def _fill(parts: PartWriter, key: str, body: Upload) -> None:
    """Write the body, and sync it in parts. Raises ChecksumRefused if it differs from its announced size or
    checksum."""
    checksum = 0
    for piece in body.open():
        checksum = crc32c(piece, checksum)
        parts.write([piece])
        if parts.size > body.size:
            break
    if parts.size != body.size:
        raise ChecksumRefused(f"PUT {key}: the source gave {parts.size} of {body.size} bytes; read it again")
    if checksum != (announced := body.checksum()):
        raise ChecksumRefused(
            f"PUT {key}: the bytes sent have CRC32C {checksum:08x}, but the source announced {announced:08x}; read "
            "it again"
        )
