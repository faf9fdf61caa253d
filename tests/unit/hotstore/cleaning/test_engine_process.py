"""The cleaner's engine in a child process: the same bytes, and an error for whatever happens to the child."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from hotstore.cleaning import engine_messages as messages
from hotstore.cleaning.engine import CleanerEngine, CleanerLost, LocalEngine, Mapped
from hotstore.cleaning.engine_messages import LAST_OFFSETS_MAX
from hotstore.cleaning.engine_process import Deadlines, ProcessEngine
from hotstore.errors import DamagedLog
from logformat.record_batch import walk
from seams.files.disk import File, is_full
from seams.files.posix_disk import PosixDisk
from seams.rng import SeededRng
from tests.support.disk.cleaning_kit import (
    BUFFER_BYTES,
    INTERVAL_BYTES,
    RULES,
    Cleaned,
    clean_all,
    keyed_batches,
    map_all,
    open_targets,
    put_segment,
    whole_pass,
)
from tests.support.disk.process_engine_kit import (
    child_of,
    descriptors,
    kill_child,
    memory_mib,
    process_engine,
    stopped_child,
    wait_for_end,
)
from tests.support.processes.operations_kit import small_disk
from tests.support.waiting import wait_until

pytestmark = pytest.mark.not_fast  # each starts a process

DISK = PosixDisk()
STEPS = ("begin", "map", "begin_segment", "clean", "finish_segment", "end")


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessEngine]:
    """For tests that leave the child alive and without a pass."""
    with process_engine() as engine:
        yield engine


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


@pytest.fixture
def source(tmp_path: Path) -> File:
    return put_segment(DISK, f"{tmp_path}/a.log", keyed_batches(40))


def cleaned(
    engine: CleanerEngine, place: Path, source: File, on_step: Callable[[str], None] = lambda _: None
) -> Cleaned:
    return whole_pass(engine, DISK, str(place), [(0, [source])], on_step=on_step)


@pytest.mark.parametrize("chunk", [1, 1000, 1 << 20])
def test_it_writes_the_bytes_of_the_local_engine(shared: ProcessEngine, tmp_path: Path, chunk: int) -> None:
    batches = keyed_batches(300, keys=400, records=3)
    groups = [
        (base, [put_segment(DISK, f"{tmp_path}/{base}", batches[base // 3 : base // 3 + 100])])
        for base in (0, 300, 600)
    ]
    local = LocalEngine(SeededRng(1))
    made = [whole_pass(engine, DISK, str(tmp_path), groups, chunk=chunk) for engine in (local, shared)]
    assert made[0] == made[1] and len(made[0].log) > 10_000


def test_the_last_offsets_of_producers_reach_the_child(shared: ProcessEngine, tmp_path: Path) -> None:
    """In more than one message, and of one pass only."""
    batches = keyed_batches(60)
    source = put_segment(DISK, f"{tmp_path}/a.log", batches)
    offsets = (*range(4, 200, 10), *range(1_000, 1_000 + 2 * LAST_OFFSETS_MAX))
    groups = [(0, [source])]

    def logs(engine: CleanerEngine) -> list[bytes]:
        ruled = replace(RULES, last_offsets=offsets)
        return [whole_pass(engine, DISK, str(tmp_path), groups, rules=rules).log for rules in (ruled, RULES)]

    made = logs(LocalEngine(SeededRng(1)))
    assert made == logs(shared)
    empty = [[header.last_offset for _, header in walk(log) if header.record_count == 0] for log in made]
    assert empty == [list(range(4, 200, 10)), []]


PASS = """
import sys
from hotstore.cleaning.engine_process import ProcessEngine
from seams.files.posix_disk import PosixDisk
from logformat.compaction.rules import CleanRules
disk, place, last = PosixDisk(), *sys.argv[1:]
engine = ProcessEngine()

def reached(step):
    if step == last:
        print(engine.pid, flush=True)
        sys.stdin.read()

engine.begin(1 << 20, CleanRules(1_000_000, 60_000))
reached("map")
source = disk.open(f"{place}/a.log")
engine.map(source, 0, source.size())
reached("begin_segment")
targets = [disk.open(f"{place}/{name}", write=True, create=True) for name in ("x.log", "x.index", "x.timeindex")]
engine.begin_segment(0, 4096, *targets)
reached("clean")
engine.clean(source, 0, source.size())
reached("finish_segment")
done = engine.finish_segment()
assert done.size == targets[0].size() > 0 and done.stats
reached("end")
engine.end()
reached("idle")
engine.close()
loaded = {name.partition(".")[0] for name in sys.modules} & {"numba", "llvmlite", "numpy"}
assert not loaded, loaded
"""


@contextlib.contextmanager
def broker_of(script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


def test_the_broker_never_imports_numba(tmp_path: Path, source: File) -> None:
    with broker_of(PASS, str(tmp_path), "none") as broker:
        assert broker.wait(110) == 0


@pytest.mark.parametrize("step", [*STEPS[1:], "idle"])
def test_a_killed_broker_takes_its_cleaner_with_it(tmp_path: Path, source: File, step: str) -> None:
    """Within a step too: tests/unit/seams/test_child_process.py."""
    with broker_of(PASS, str(tmp_path), step) as broker:
        assert broker.stdout is not None
        child = int(broker.stdout.readline())
        broker.kill()
        wait_for_end(child)


@pytest.mark.parametrize("step", STEPS)
def test_a_cleaner_killed_before_a_step_is_lost(tmp_path: Path, engine: ProcessEngine, source: File, step: str) -> None:
    """`end` never raises, `begin` starts another, each other step says that the pass is over."""
    engine.begin(BUFFER_BYTES, RULES)
    first = child_of(engine)
    kills = iter([lambda: kill_child(engine)])

    def kill_once(at: str) -> None:
        if at == step:
            next(kills, lambda: None)()

    ends_well = step in ("begin", "end")
    with contextlib.nullcontext() if ends_well else pytest.raises(CleanerLost, match=f"{first} was killed by signal 9"):
        cleaned(engine, tmp_path, source, kill_once)
    engine.end()
    after = cleaned(engine, tmp_path, source)
    assert child_of(engine) != first and after == cleaned(LocalEngine(SeededRng(1)), tmp_path, source)


def in_step(engine: ProcessEngine, source: File, pool: ThreadPoolExecutor) -> Callable[[], object]:
    """Begin a step of a stopped child in another thread, and wait until it waits there; the step's outcome."""
    future = pool.submit(engine.map, source, 0, source.size())
    wait_until(lambda: second_is_refused(engine), "the thread is inside its call")
    return future.result


def second_is_refused(engine: ProcessEngine) -> bool:
    try:
        engine.reap()
    except AssertionError:
        return True
    return False


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_cleaner_killed_within_a_step_is_lost(engine: ProcessEngine, source: File, pool: ThreadPoolExecutor) -> None:
    engine.begin(BUFFER_BYTES, RULES)
    with stopped_child(engine):
        outcome = in_step(engine, source, pool)
        kill_child(engine)
        with pytest.raises(CleanerLost, match="killed by signal 9"):
            outcome()


def test_a_hung_cleaner_is_killed_and_lost(source: File) -> None:
    with process_engine() as engine:
        engine.begin(BUFFER_BYTES, RULES)
        engine.deadlines = Deadlines(step_s=0.0, bytes_per_s_min=source.size() * 20)
        first = child_of(engine)
        with stopped_child(engine), pytest.raises(CleanerLost, match="did not answer in 0 s"):
            engine.map(source, 0, source.size())
        wait_for_end(first)
        with pytest.raises(CleanerLost, match="no cleaner process"):
            engine.map(source, 0, source.size())


def test_a_second_thread_is_refused(engine: ProcessEngine, source: File, pool: ThreadPoolExecutor) -> None:
    engine.begin(BUFFER_BYTES, RULES)
    with stopped_child(engine):
        outcome = in_step(engine, source, pool)
        with pytest.raises(AssertionError, match="another thread"):
            engine.map(source, 0, 100)
    assert outcome() == Mapped(source.size(), 200, False)


def test_closing_ends_a_step_of_another_thread(engine: ProcessEngine, source: File, pool: ThreadPoolExecutor) -> None:
    engine.begin(BUFFER_BYTES, RULES)
    child = child_of(engine)
    with stopped_child(engine):
        outcome = in_step(engine, source, pool)
        engine.close()
        with pytest.raises(CleanerLost):
            outcome()
    wait_for_end(child)
    engine.end()
    with pytest.raises(CleanerLost, match="closed"):
        engine.begin(BUFFER_BYTES, RULES)
    assert engine.pid is None


def test_an_idle_cleaner_ends_and_the_next_pass_starts_another(tmp_path: Path, source: File) -> None:
    with process_engine(idle_s=0.01) as engine:
        before = cleaned(engine, tmp_path, source)  # a pass is not idle, however long its caller takes
        first = child_of(engine)
        wait_for_end(first)
        assert cleaned(engine, tmp_path, source) == before
        second = child_of(engine)
        assert second != first
        wait_for_end(second)
        engine.reap()
        assert engine.pid is None and not Path(f"/proc/{second}").exists()
        engine.reap()


def test_a_forked_process_leaves_the_cleaner_alone(tmp_path: Path, engine: ProcessEngine, source: File) -> None:
    engine.begin(BUFFER_BYTES, RULES)
    child = child_of(engine)
    copy = os.fork()
    if copy == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                engine.map(source, 0, source.size())
            except CleanerLost:
                engine.end()
                engine.close()
                code = 0
        os._exit(code)
    assert os.waitpid(copy, 0)[1] == 0
    assert map_all(engine, [source], 1000) == 200 and child_of(engine) == child


def test_a_closed_descriptor_is_the_callers_error(tmp_path: Path, shared: ProcessEngine, source: File) -> None:
    shared.begin(BUFFER_BYTES, RULES)
    child = child_of(shared)
    other = DISK.open(source.path)
    other.close()
    with pytest.raises(OSError) as caught:
        shared.map(other, 0, 100)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, source.path)
    for file in (targets := open_targets(DISK, str(tmp_path), 0)):
        assert file.size() == 0
    log, offset_index, time_index = targets
    shared.begin_segment(0, INTERVAL_BYTES, DISK.open(log.path, write=True), offset_index, time_index)
    for file in targets:
        file.close()  # the child has its own
    clean_all(shared, [source], 1000)
    assert shared.finish_segment().size == os.stat(log.path).st_size > 0
    shared.end()
    assert child_of(shared) == child


def test_files_opened_for_reading_only_are_refused(tmp_path: Path, shared: ProcessEngine, source: File) -> None:
    targets = open_targets(DISK, str(tmp_path), 0)
    shared.begin(BUFFER_BYTES, RULES)
    with pytest.raises(OSError) as caught:
        shared.begin_segment(0, INTERVAL_BYTES, *(DISK.open(file.path) for file in targets))
    assert caught.value.errno == errno.EINVAL
    shared.end()


def test_damage_arrives_with_its_place(shared: ProcessEngine, source: File) -> None:
    source.write_at(source.size() - 1, [b"\1"])
    errors = []
    for engine in (LocalEngine(SeededRng(1)), shared):
        engine.begin(BUFFER_BYTES, RULES)
        with pytest.raises(DamagedLog) as caught:
            map_all(engine, [source], 1000)
        engine.end()
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert vars(errors[0]) == vars(errors[1]) and errors[1].offset == 195


def refusal_of(step: Callable[[], object]) -> OSError:
    """The error of a step, without the files in its traceback."""
    try:
        step()
    except OSError as error:
        return error.with_traceback(None)
    raise AssertionError("nothing was refused")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small file system")
def test_a_full_disk_arrives_as_such(tmp_path: Path, shared: ProcessEngine) -> None:
    source = put_segment(DISK, f"{tmp_path}/a.log", keyed_batches(400, keys=5000))
    cleaned(shared, tmp_path, source)
    open_files = descriptors(child_of(shared))
    with small_disk(tmp_path / "small", 16 << 10) as small:
        assert is_full(refusal_of(lambda: cleaned(shared, small, source)))
        shared.end()
        assert descriptors(child_of(shared)) == open_files  # else it could not be unmounted
    assert cleaned(shared, tmp_path, source).segments[0].end_offset == 2000


def test_too_large_a_map_is_a_lack_of_memory(shared: ProcessEngine, tmp_path: Path, source: File) -> None:
    with pytest.raises(OSError) as caught:
        shared.begin(1 << 48, RULES)  # more than a process can address
    assert caught.value.errno == errno.ENOMEM
    cleaned(shared, tmp_path, source)


def test_a_defect_of_the_child_ends_it(engine: ProcessEngine, source: File) -> None:
    """It is told, and nothing half-done stays in the child."""
    engine.begin(BUFFER_BYTES, RULES)
    child = child_of(engine)
    with pytest.raises(CleanerLost, match="AssertionError: no segment was begun"):
        engine.clean(source, 0, 100)
    wait_for_end(child)


def test_memory_and_descriptors_are_given_back(tmp_path: Path, engine: ProcessEngine) -> None:
    """Beyond the map, a pass takes at most 64 MiB above a child that did nothing yet."""
    map_bytes = 64 << 20
    source = put_segment(DISK, f"{tmp_path}/big.log", keyed_batches(400, keys=1000, records=20, size=4000))
    assert source.size() > 16 << 20
    engine.begin(1 << 20, RULES)
    engine.end()
    child = child_of(engine)
    idle, open_files = memory_mib(child), descriptors(child)
    whole_pass(engine, DISK, str(tmp_path), [(0, [source])], chunk=8 << 20, buffer_bytes=map_bytes)
    most, after = memory_mib(child, "VmHWM"), memory_mib(child)
    print(f"idle {idle:.0f} MiB, at most {most:.0f} MiB, after {after:.0f} MiB")
    assert most - idle < 64 + (map_bytes >> 20) and after - idle < 16
    assert descriptors(child) == open_files and child_of(engine) == child


def test_a_path_need_not_be_text() -> None:
    path = os.fsdecode(b"/log/\xff\xfe")
    assert messages.path_text(messages.path_bytes(path)) == path
    error = messages.raised(messages.FileError(errno.ENOSPC, "full", messages.path_bytes(path)))
    assert isinstance(error, OSError) and error.filename == path and is_full(error)
    long = messages.error_reply(DamagedLog(path, 1, 2, "\udcff" * 10_000, "hint"))
    assert len(messages.encode(long)) < 32_000 and isinstance(long, messages.Damage)
