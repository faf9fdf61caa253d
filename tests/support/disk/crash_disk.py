"""A `Disk` in memory that forgets what was not synced: for power cuts, kills, full and failing disks.

What it owns: a page cache and, beside it, what would survive a power cut. A write goes to the cache in 512-byte pieces;
`File.sync` makes a file's content and size durable; names (create, rename, link, unlink, directories) become durable
only by `sync_dir` of their directory (ALICE). `crash` gives the disk a machine finds after a power cut: every piece and
every change of names that nothing had synced survives or not, independently, later ones without earlier ones;
grown files may be long and empty (zeros). `kill` is SIGKILL: the cache survives, locks and descriptors do not.
An open directory is followed through renames: what is done in it counts, and is told, under its path of that moment.
Faults: `inject` makes an operation raise (once, later, always), `capacity_bytes` fills the disk with a short write
first. A failed sync behaves as Linux does: its pages are marked clean, so that the next sync "succeeds" without them.
`on_effect(kind, path)` is called before each change, so that a hook that raises cuts the power between two effects
(`on_rename(source, target)` before that: an effect names the target alone);
`hits` counts what took effect, injected faults too (`fault:<kind>`). A disk after `crash` or `kill` shares the counts
and has neither hook nor faults.
Not modelled: latency (wrap the workers), permissions, symlinks, and directory cycles.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from seams.files.disk import Buffer, Directory, File, FileStat, Lock, Space
from seams.rng import Rng

PIECE_BYTES = 512
CAPACITY_BYTES = 1 << 40


class Inode:
    """A file's content: as programs see it (`data`), and as a power cut leaves it (`durable`)."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()
        self.is_dir = False
        self.allocated = 0  # bytes taken without content
        self.ahead = 0  # where blocks taken beyond the content end
        self.changes = 0  # of what lies in it, durably or not; whoever has read it knows by them that it is as it was

    @property
    def taken(self) -> int:
        """Bytes of the disk."""
        return max(len(self.data), self.allocated, self.ahead)

    def copy(self) -> Inode:
        other = Inode()
        other.data, other.durable, other.dirty = bytearray(self.data), bytearray(self.durable), set(self.dirty)
        other.is_dir, other.allocated, other.ahead = self.is_dir, self.allocated, self.ahead
        return other

    def survive(self, keeps: Callable[[], bool]) -> Inode:
        """What a power cut leaves of it."""
        other = Inode()
        other.is_dir, other.allocated, other.ahead = self.is_dir, self.allocated, self.ahead
        kept = [piece for piece in sorted(self.dirty) if keeps()]
        size = len(self.data) if len(self.data) != len(self.durable) and keeps() else len(self.durable)
        for piece in kept:
            if piece * PIECE_BYTES < len(self.data):
                size = max(size, min((piece + 1) * PIECE_BYTES, len(self.data)))
        content = bytearray(self.durable[:size])
        content.extend(bytes(size - len(content)))
        for piece in kept:
            start = piece * PIECE_BYTES
            end = min(start + PIECE_BYTES, size, len(self.data))
            if start < end:
                content[start:end] = self.data[start:end]
        other.data = content
        other.durable = bytearray(other.data)
        return other


@dataclass
class NameChange:
    """One change of names, atomic as in a journal: `removes` and `adds` happen together or not at all. `moved`: a
    directory that has another name by it, so that nothing is below the old one ("": none)."""

    removes: tuple[str, ...]
    adds: tuple[tuple[str, Inode], ...]
    moved: str = ""
    directories: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        self.directories = frozenset(parent(path) for path in (*self.removes, *(path for path, _ in self.adds)))

    def apply(self, names: dict[str, Inode]) -> None:
        for path in self.removes:
            names.pop(path, None)
        if self.moved:
            for path in [name for name in names if name.startswith(self.moved + "/")]:
                del names[path]
        for path, inode in self.adds:
            names[path] = inode

    def only(self, stays: Callable[[str], bool]) -> NameChange:
        """Of it, what concerns names that stay."""
        adds = tuple(add for add in self.adds if stays(add[0]))
        return replace(self, removes=tuple(filter(stays, self.removes)), adds=adds)


@dataclass
class Fault:
    """`operation` on paths that end with `suffix`, in directory `below`, raises `code`, after `skip` times, `times`
    times (−1: for ever). `struck` counts those."""

    operation: str
    code: int
    suffix: str = ""
    skip: int = 0
    times: int = 1
    below: str = ""
    struck: int = 0

    def strikes(self, operation: str, path: str) -> bool:
        if operation != self.operation or self.times == 0 or not path.endswith(self.suffix):
            return False
        if self.below and not f"{path}/".startswith(f"{self.below}/"):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times > 0:
            self.times -= 1
        return True


@dataclass
class _Held:
    path: str
    held: set[str]

    def release(self) -> None:
        self.held.discard(self.path)


def parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"


class CrashFile:
    """`File` on an inode of a CrashDisk."""

    def __init__(self, disk: CrashDisk, inode: Inode, path: str, *, write: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._write = write
        self._open = True

    @property
    def path(self) -> str:
        return self._path

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._check(write=True)
        data = b"".join(bytes(buffer) for buffer in buffers)
        room = self._disk.room_for(self._inode, position, len(data))
        if room < len(data):
            self._put(position, data[:room])
            self._disk.hits["fault:full"] += 1
            raise OSError(errno.ENOSPC, "no space left on device", self._path)
        self._disk.effect("write", self._path)
        self._put(position, data)
        return len(data)

    def _put(self, position: int, data: bytes) -> None:
        content = self._inode.data
        self._inode.changes += 1
        if position > len(content):
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data
        if data:
            self._inode.dirty.update(range(position // PIECE_BYTES, (position + len(data) - 1) // PIECE_BYTES + 1))

    def read_at(self, position: int, length: int) -> bytes:
        self._check()
        self._disk.fault("read", self._path)
        return bytes(self._inode.data[position : position + length])

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read_at(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sync(self) -> None:
        self._check()
        inode = self._inode
        inode.changes += 1
        try:
            self._disk.effect("sync", self._path)
        except OSError:
            inode.dirty.clear()  # fsyncgate: never written, and never tried again
            raise
        size = len(inode.data)
        durable = inode.durable
        if len(durable) > size:
            del durable[size:]
        # A grown size alone leaves zeros where pages were lost by a failed sync.
        durable.extend(bytes(size - len(durable)))
        for piece in inode.dirty:
            start = piece * PIECE_BYTES
            end = min(start + PIECE_BYTES, size)
            if start < end:
                durable[start:end] = inode.data[start:end]
        inode.dirty.clear()

    def truncate(self, size: int) -> None:
        self._check(write=True)
        self._disk.effect("truncate", self._path)
        content = self._inode.data
        self._inode.changes += 1
        # What is cut may be written again later: until a sync, either the old or the new bytes may be found there.
        last = max(len(content), len(self._inode.durable))
        if size < last:
            self._inode.dirty.update(range(size // PIECE_BYTES, (last - 1) // PIECE_BYTES + 1))
        del content[size:]
        content.extend(bytes(size - len(content)))
        self._inode.ahead = 0

    def allocate_ahead(self, position: int, end: int) -> None:
        self._check(write=True)
        inode = self._inode
        if self._disk.room_for(inode, position, end - position) < end - position:
            raise OSError(errno.ENOSPC, "no space left on device", self._path)
        self._disk.effect("allocate_ahead", self._path)
        inode.ahead = max(inode.ahead, end)

    def size(self) -> int:
        self._check()
        return len(self._inode.data)

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None:
        self._open = False

    def _check(self, *, write: bool = False) -> None:
        if not self._open or (write and not self._write):
            raise OSError(errno.EBADF, "bad file descriptor", self._path)


class CrashDirectory:
    """`Directory` of a CrashDisk: an inode, which is looked for where it lies now."""

    def __init__(self, disk: CrashDisk, inode: Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = self._found_at = path
        self._open = True

    @property
    def path(self) -> str:
        return self._path

    def open(self, name: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        return self._disk.open(self._at(name), write=write, create=create, exclusive=exclusive)

    def stat(self, name: str) -> FileStat | None:
        return None if self._place() is None else self._disk.stat(self._at(name))

    def list(self) -> list[str]:
        place = self._place()
        return [] if place is None else self._disk.list_dir(place)

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(self._at(source), self._at(target))

    def unlink(self, name: str) -> None:
        self._disk.unlink(self._at(name))

    def sync(self) -> None:
        place = self._place()
        if place is not None:
            self._disk.sync_dir(place)

    def close(self) -> None:
        self._open = False

    def _at(self, name: str) -> str:
        assert "/" not in name, name
        place = self._place()
        if place is None:
            raise FileNotFoundError(errno.ENOENT, "directory was removed", f"{self._path}/{name}")
        return f"{place.rstrip('/')}/{name}"

    def _place(self) -> str | None:
        """Its path now; None once it was removed."""
        if not self._open:
            raise OSError(errno.EBADF, "bad file descriptor", self._path)
        found = self._disk.path_of_directory(self._inode, self._found_at)
        if found is not None:
            self._found_at = found
        return found


class CrashDisk:
    """`Disk` in memory; see the module."""

    def __init__(
        self, *, capacity_bytes: int = CAPACITY_BYTES, on_effect: Callable[[str, str], None] | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.on_effect = on_effect
        self.on_rename: Callable[[str, str], None] | None = None
        self.hits: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.names_changes = 0  # of which names there are, durably or not
        root = Inode()
        root.is_dir = True
        self._names: dict[str, Inode] = {"/": root}
        self._durable: dict[str, Inode] = {"/": root}
        self._pending: list[NameChange] = []
        self._pending_in: Counter[str] = Counter()  # of them, how many in each directory
        self._locks: set[str] = set()

    # --- faults -------------------------------------------------------------------------------------------------

    def inject(
        self, operation: str, code: int, suffix: str = "", *, skip: int = 0, times: int = 1, below: str = ""
    ) -> Fault:
        """Make `operation` (an effect's kind, "read", "open", "open_dir", "list") fail; the returned fault may be
        taken back with `heal`."""
        fault = Fault(operation, code, suffix, skip, times, below)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget every injected fault."""
        self.faults.clear()

    def crash(self, rng: Rng, keep_probability: float) -> CrashDisk:
        """The disk after a power cut: what was synced, and of the rest each piece with `keep_probability`.

        This disk is left as it was, so that one moment can be cut in many ways.
        """

        def keeps() -> bool:
            return rng.uniform(0.0, 1.0) < keep_probability

        names = dict(self._durable)
        for change in self._pending:
            if keeps():
                change.apply(names)
        after = self._heir()
        made: dict[int, Inode] = {}
        for path in sorted(names):
            inode = names[path]
            if path != "/" and not self._reachable(path, names):
                continue
            if id(inode) not in made:
                made[id(inode)] = inode.survive(keeps)
            after._names[path] = made[id(inode)]
        after._durable = dict(after._names)
        return after

    def kill(self) -> CrashDisk:
        """The disk after SIGKILL: everything is still in the page cache, nothing became more durable."""
        after = self._heir()
        made: dict[int, Inode] = {}

        def copied(inode: Inode) -> Inode:
            if id(inode) not in made:
                made[id(inode)] = inode.copy()
            return made[id(inode)]

        after._names = {path: copied(inode) for path, inode in self._names.items()}
        after._durable = {path: copied(inode) for path, inode in self._durable.items()}
        after._hold(
            [
                replace(change, adds=tuple((path, copied(inode)) for path, inode in change.adds))
                for change in self._pending
            ]
        )
        return after

    def taken(self, path: str) -> int:
        """Bytes of the disk that a file takes, room beyond its end among them."""
        return self._file(path).taken

    def forget(self, path: str) -> None:
        """The disk below `path` is lost: everything in it is gone, durably."""
        self.names_changes += 1
        for names in (self._names, self._durable):
            for known in [name for name in names if name == path or name.startswith(path + "/")]:
                del names[known]

        def stays(name: str) -> bool:
            return name != path and not name.startswith(path + "/")

        kept = (change.only(stays) for change in self._pending)
        self._hold([change for change in kept if change.removes or change.adds])

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Damage a file at rest, in the cache and below it."""
        inode = self._names[path]
        inode.changes += 1
        inode.data[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit

    def effect(self, kind: str, path: str) -> None:
        """Announce one change; raises what is injected, or what the hook raises: then it does not happen."""
        self.fault(kind, path)
        if self.on_effect is not None:
            self.on_effect(kind, path)
        self.hits[kind] += 1

    def fault(self, kind: str, path: str) -> None:
        for fault in self.faults:
            if fault.strikes(kind, path):
                self.hits[f"fault:{kind}"] += 1
                fault.struck += 1
                raise OSError(fault.code, "injected", path)

    def room_for(self, inode: Inode, position: int, length: int) -> int:
        """How many of `length` bytes at `position` still fit."""
        if self.capacity_bytes >= CAPACITY_BYTES:
            return length
        growth = max(position + length - max(len(inode.data), inode.ahead), 0)
        return max(length - max(growth - self.space("/").free, 0), 0)

    # --- Disk ---------------------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        self.fault("open", path)
        inode = self._names.get(path)
        if inode is not None and exclusive and create:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        if inode is not None and inode.is_dir:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            if self.capacity_bytes < CAPACITY_BYTES and self.space("/").free <= 0:
                self.hits["fault:full"] += 1
                raise OSError(errno.ENOSPC, "no space left on device", path)
            inode = Inode()
            self._change("create", path, NameChange((), ((path, inode),)))
        return CrashFile(self, inode, path, write=write)

    def check_descriptors(self) -> None:
        """There are always enough."""

    def open_dir(self, path: str) -> Directory:
        self.fault("open_dir", path)
        return CrashDirectory(self, self._directory(path), path)

    def path_of_directory(self, inode: Inode, likely: str) -> str | None:
        """Where a directory lies now, which lay at `likely`; None where it was removed."""
        if self._names.get(likely) is inode:
            return likely
        return next((path for path, found in self._names.items() if found is inode), None)

    def stat(self, path: str) -> FileStat | None:
        inode = self._names.get(path)
        return None if inode is None else FileStat(max(len(inode.data), inode.allocated), inode.is_dir)

    def list_dir(self, path: str) -> list[str]:
        self._directory(path)
        self.fault("list", path)
        start = path.rstrip("/") + "/"
        return sorted(
            name[len(start) :]
            for name in self._names
            if name.startswith(start) and name != "/" and "/" not in name[len(start) :]
        )

    def make_dirs(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            at = "/" + "/".join(parts[:depth])
            found = self._names.get(at)
            if found is None:
                inode = Inode()
                inode.is_dir = True
                self._change("mkdir", at, NameChange((), ((at, inode),)))
            elif not found.is_dir:
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", at)

    def rename(self, source: str, target: str) -> None:
        found = self._names.get(source)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        moved = [(source, found)]
        if found.is_dir:  # a file, which is renamed far more often, has no children to look for
            moved += [(path, inode) for path, inode in self._names.items() if path.startswith(source + "/")]
        if found.is_dir and self.stat(target) is not None:
            raise FileExistsError(errno.EEXIST, "directory exists", target)
        if self.on_rename is not None:
            self.on_rename(source, target)
        # A directory's rename is one entry on a real disk; its children move with it here, durable or not as they are.
        adds = tuple((target + path[len(source) :], inode) for path, inode in moved)
        if not found.is_dir:
            self._change("rename", target, NameChange((source,), adds))
            return
        self._rename_tree(source, target)

    def link(self, source: str, target: str) -> None:
        inode = self._file(source)
        if target in self._names:
            raise FileExistsError(errno.EEXIST, "file exists", target)
        self._change("link", target, NameChange((), ((target, inode),)))

    def unlink(self, path: str) -> None:
        self._file(path)
        self._change("unlink", path, NameChange((path,), ()))

    def remove_dir(self, path: str) -> None:
        self._directory(path)
        if self.list_dir(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        self._change("rmdir", path, NameChange((path,), ()))

    def sync_dir(self, path: str) -> None:
        self._directory(path)
        self.effect("sync_dir", path)
        if self._pending_in[path] == 0:
            return
        self.names_changes += 1
        left: list[NameChange] = []
        for change in self._pending:
            if path in change.directories:
                change.apply(self._durable)
                if below := change.moved and change.moved + "/":  # what came before it is at the new name only
                    left = [earlier.only(lambda name, below=below: not name.startswith(below)) for earlier in left]
            else:
                left.append(change)
        self._hold([change for change in left if change.removes or change.adds])

    def space(self, path: str) -> Space:
        inodes = {id(inode): inode for inode in self._names.values()}
        used = sum(inode.taken for inode in inodes.values())
        return Space(self.capacity_bytes, max(self.capacity_bytes - used, 0))

    def allocate(self, path: str, size: int) -> None:
        self.open(path, write=True, create=True).close()
        if self.capacity_bytes < CAPACITY_BYTES and self.space("/").free < size:
            self.hits["fault:full"] += 1
            raise OSError(errno.ENOSPC, "no space left on device", path)
        self.effect("allocate", path)
        self._names[path].allocated = size

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock:
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.open(path, write=True, create=True).close()
        self._locks.add(path)
        return _Held(path, self._locks)

    # --- inside -------------------------------------------------------------------------------------------------

    def _change(self, kind: str, path: str, change: NameChange) -> None:
        for name, _ in change.adds:
            self._directory(parent(name))
        self.effect(kind, path)
        self.names_changes += 1
        change.apply(self._names)
        self._pending.append(change)
        self._pending_in.update(change.directories)

    def _rename_tree(self, source: str, target: str) -> None:
        """Move a directory with all below it, in the cache, in what is durable, and in what is pending."""
        self._directory(parent(target))
        self.effect("rename", target)

        def moves(path: str) -> bool:
            return path == source or path.startswith(source + "/")

        def moved(path: str) -> str:
            return target + path[len(source) :] if moves(path) else path

        self.names_changes += 1
        directory = self._names[source]
        self._names = {moved(path): inode for path, inode in self._names.items()}
        # Children hang on the directory itself: in the durable view they are kept under both names, and the one whose
        # directory did not survive is dropped as unreachable.
        for path, inode in list(self._durable.items()):
            if path.startswith(source + "/"):
                self._durable[moved(path)] = inode
        doubled = [
            replace(
                change,
                removes=(*change.removes, *map(moved, filter(moves, change.removes))),
                adds=(*change.adds, *((moved(path), inode) for path, inode in change.adds if moves(path))),
            )
            for change in self._pending
        ]
        self._hold([*doubled, NameChange((source,), ((target, directory),), source)])

    def _hold(self, changes: list[NameChange]) -> None:
        """These changes of names are not durable yet."""
        self._pending = changes
        self._pending_in = Counter(directory for change in changes for directory in change.directories)

    def _reachable(self, path: str, names: dict[str, Inode]) -> bool:
        above = parent(path)
        while above != "/":
            found = names.get(above)
            if found is None or not found.is_dir:
                return False
            above = parent(above)
        return True

    def _directory(self, path: str) -> Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if not inode.is_dir:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return inode

    def _file(self, path: str) -> Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if inode.is_dir:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return inode

    def _heir(self) -> CrashDisk:
        after = CrashDisk(capacity_bytes=self.capacity_bytes)
        after.hits = self.hits
        return after
