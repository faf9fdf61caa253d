"""Threads that make the first decoder of a type at once. `cluster drain` died so of SIGSEGV, and a pool of readers."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, for it dies where the bug is. Many types, so that many firsts; many fields, so that filling
# them in takes longer than a thread's turn.
FIRSTS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import msgspec
from seams.typed_json import decoder_of

sys.setswitchinterval(1e-6)
together = Barrier(4)

def first(kind):
    together.wait(30)
    return decoder_of(kind).decode(msgspec.json.encode(kind())) == kind()

with ThreadPoolExecutor(4) as pool:
    for round in range(300):
        numbers = [(f"f{at}", "int | None", None) for at in range(20)]
        leaf = msgspec.defstruct(f"Leaf{round}", numbers, frozen=True, namespace={"__module__": "builtins"})
        fields = [(f"f{at}", leaf, leaf()) for at in range(20)]
        kind = msgspec.defstruct(f"Kind{round}", fields, frozen=True)
        assert all(pool.map(first, [kind] * 4))
"""


@pytest.mark.not_fast
def test_many_threads_may_make_the_first_decoder_of_a_type() -> None:
    run = subprocess.run([sys.executable, "-c", FIRSTS], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")
