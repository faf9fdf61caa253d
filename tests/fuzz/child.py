"""One target under Atheris, in a process of its own: `python -m tests.fuzz.child <target> [libFuzzer arguments]`.
FUZZ_PLANT in the environment names a bug to put in first (`plants`).

The only file that knows Atheris. Our packages are instrumented while they are imported, so that libFuzzer sees which
branches an input took; native code (CRC, codecs, msgspec, pyarrow, numba) is not. libFuzzer ends the process itself.
"""

from __future__ import annotations

import contextlib
import os
import sys

import atheris

INSTRUMENTED = ["logformat", "hotstore", "coldstore", "broker", "thermocline"]
KERNELS = ("thermocline/pipeline/decode", "logformat/kernels", "logformat/compaction")
NUMBA = ("raw_memory.py", "kernel_cache.py")


def _left_alone() -> list[str]:
    """Modules that numba compiles, because it cannot read instrumented bytecode. The numpy decoder of the tests is not
    instrumented either: Atheris never releases what it traced there (10 KB an execution)."""
    names = [(room, file) for room in KERNELS for file in sorted(os.listdir(room))]
    alone = [(room, file) for room, file in names if file.endswith("_kernel.py") or file in NUMBA]
    return [f"{room}/{file}".removesuffix(".py").replace("/", ".") for room, file in alone]


def main() -> None:
    with atheris.instrument_imports(include=INSTRUMENTED, exclude=_left_alone(), enable_loader_override=False):
        from tests.fuzz.plants import named, planted
        from tests.fuzz.targets import load

        target = load(sys.argv[1])
    with contextlib.ExitStack() as stack:
        plant = os.environ.get("FUZZ_PLANT")
        if plant is not None:
            atheris.instrument_func(stack.enter_context(planted(named(plant))))
        else:
            for seed in target.seeds():  # late imports and compiled codecs, before RSS is looked at
                target.run(seed)
        # A merge starts itself again by what it is told is its own name.
        myself = f"{sys.executable} -m tests.fuzz.child {sys.argv[1]}"
        atheris.Setup([myself, *sys.argv[2:]], target.run)
        atheris.Fuzz()


main()
