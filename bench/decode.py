"""Times the pipeline's decoder on one core: `python bench/decode.py [MiB]`. Prints records/s and GB/s, best of seven.

The figures behind `thermocline/pipeline/decode`; no bucket, no broker. Logs are one encoded batch repeated under
growing offsets (the base offset is outside the CRC), in memory.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

from logformat.record_batch import PLACE, Codec, read_header
from logformat.records import Record, encode_batch
from tests.support.pipeline.numpy_decoder import NumpyWay
from thermocline.pipeline.decode.batches import BatchDecoder, Way
from thermocline.pipeline.decode.kernel_way import KernelWay
from thermocline.pipeline.split import RowFilter

ROWS = RowFilter(0, 2**62)
FOUR = ("key", "value", "offset", "timestamp")
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
WORDS = [f"field{n}={n * 7919 % 1000}" for n in range(200)]


def value(size: int, seed: int) -> bytes:
    """Text that compresses about as well as events do."""
    words: list[str] = []
    length = 0
    state = seed
    while length < size:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        words.append(WORDS[(state >> 8) % len(WORDS)])
        length += len(words[-1]) + 1
    return ",".join(words).encode()[:size]


def make_log(value_bytes: int, batch_bytes: int, log_bytes: int, codec: Codec = Codec.NONE, headers: int = 0) -> bytes:
    count = max(1, batch_bytes // (value_bytes + 20))
    some = tuple((f"h{n}", b"header") for n in range(headers))
    batch = bytearray(
        encode_batch(
            [Record(n, 1_700_000_000_000 + n, b"key%07d" % n, value(value_bytes, n), some) for n in range(count)],
            codec=codec,
        )
    )
    times, length = max(1, log_bytes // len(batch)), read_header(batch).length
    log = bytearray(len(batch) * times)
    for n in range(times):
        PLACE.pack_into(batch, 0, n * count, length, 0)
        log[n * len(batch) : (n + 1) * len(batch)] = batch
    return bytes(log)


def best_s(call: Callable[[], int], runs: int = 7) -> tuple[float, int]:
    """Seconds of the best run, because other processes share the cores; and what it returned."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - begin)
    return min(times), result


def run(log: bytes, columns: tuple[str, ...], way: type[Way]) -> int:
    decoder = BatchDecoder("orders", 0, columns, ROWS, way=way)
    return sum(batch.num_rows for batch in decoder.decode(log))


def measure(name: str, log: bytes, columns: tuple[str, ...], way: type[Way] = KernelWay, runs: int = 7) -> None:
    took, rows = best_s(lambda: run(log, columns, way), runs)
    print(f"{name:58} {rows / took / 1e6:8.2f} M/s {len(log) / took / 1e9:7.2f} GB/s of log")


def copy_into(target: memoryview, source: bytes) -> int:
    target[: len(source)] = source
    return 0


def threads(name: str, log: bytes, columns: tuple[str, ...], count: int) -> None:
    """Threads that live: a new one first pays for page faults (1.4 GB/s), until Arrow's pool has memory for it."""

    def work() -> None:
        for _ in range(10):
            run(log, columns, KernelWay)

    def all_of_them(number: int) -> int:
        workers = [threading.Thread(target=work) for _ in range(number)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return 0

    one, _ = best_s(lambda: all_of_them(1), 3)
    many, _ = best_s(lambda: all_of_them(count), 3)
    print(f"{name:58} {count * one / many:8.2f} times one thread")


def cold_start() -> None:
    """Import and first call in a fresh process, kernels in numba's cache."""
    code = (
        "import time; t = time.perf_counter()\n"
        "from thermocline.pipeline.decode.batches import BatchDecoder\n"
        "from thermocline.pipeline.split import RowFilter\n"
        "u = time.perf_counter()\n"
        "list(BatchDecoder('t', 0, ('value',), RowFilter(0, 9)).decode(b''))\n"
        "print(f'{u - t:.3f} {time.perf_counter() - u:.3f}')"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    best = min((out.stdout.split() for out in runs), key=lambda pair: float(pair[0]) + float(pair[1]))
    print(f"{'cold start: imports, then first call (s)':58} {best[0]:>8} {best[1]:>8}")


def main() -> None:
    log_bytes = (int(sys.argv[1]) if len(sys.argv) > 1 else 64) << 20
    small, large = make_log(100, 16 << 10, log_bytes), make_log(1000, 16 << 10, log_bytes)
    target = memoryview(bytearray(log_bytes))
    took, _ = best_s(lambda: copy_into(target, large))
    print(f"{'memcpy of the log':58} {'':12} {len(large) / took / 1e9:7.2f} GB/s")
    for batch_bytes in (16 << 10, 1 << 20):
        label = f"batches of {batch_bytes >> 10} KiB"
        small, large = make_log(100, batch_bytes, log_bytes), make_log(1000, batch_bytes, log_bytes)
        measure(f"100 B, {label}, key value offset timestamp", small, FOUR)
        measure(f"100 B, {label}, Spark's default columns", small, ALL)
        measure(f"100 B, {label}, key timestamp", small, ("key", "timestamp"))
        measure(f"100 B, {label}, value", small, ("value",))
        measure(f"100 B, {label}, offset", small, ("offset",))
        measure(f"1 KB, {label}, key value offset timestamp", large, FOUR)
        measure(f"1 KB, {label}, value", large, ("value",))
    measure("100 B, a record a batch, value", make_log(100, 1, log_bytes // 4), ("value",))
    with_headers = make_log(100, 16 << 10, log_bytes, headers=2)
    measure("100 B, 2 headers, all columns and headers", with_headers, (*ALL, "headers"))
    for codec in (Codec.ZSTD, Codec.LZ4, Codec.SNAPPY, Codec.GZIP):
        for batch_bytes in (16 << 10, 1 << 20):
            log = make_log(1000, batch_bytes, log_bytes // 4, codec)
            took, rows = best_s(lambda log=log: run(log, FOUR, KernelWay), 3)
            label = f"1 KB, {codec.name.lower()}, batches of {batch_bytes >> 10} KiB, key value offset timestamp"
            print(f"{label:58} {rows / took / 1e6:8.2f} M/s {rows * 1000 / took / 1e9:7.2f} GB/s of values")
    threads("1 KB, two threads", large, FOUR, 2)
    threads("100 B, two threads", make_log(100, 16 << 10, log_bytes), FOUR, 2)
    measure("numpy way: 100 B, key value offset timestamp", make_log(100, 16 << 10, log_bytes // 8), FOUR, NumpyWay, 3)
    cold_start()


if __name__ == "__main__":
    main()
