"""Two threads that meet a type of root content first: a reader with a pool of threads died of a segmentation fault."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, for it dies where the bug is. Many types, so that many firsts; many fields, so that filling
# them in takes longer than a thread's turn.
FIRSTS = """
import sys

import pytest
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import msgspec
from coldstore.object_store import Got
from coldstore.root_format import RootCodec

sys.setswitchinterval(1e-6)
together = Barrier(4)

def first(kind):
    together.wait(30)
    codec = RootCodec(kind)
    data = codec.encode(1, 1, ((1, "0" * 32),), kind())
    return codec.decode("a", Got(data, "etag", len(data))).content == kind()

with ThreadPoolExecutor(4) as pool:
    for round in range(300):
        numbers = [(f"f{at}", "int | None", None) for at in range(20)]
        leaf = msgspec.defstruct(f"Leaf{round}", numbers, frozen=True, namespace={"__module__": "builtins"})
        fields = [(f"f{at}", leaf, leaf()) for at in range(20)]
        kind = msgspec.defstruct(f"Kind{round}", fields, frozen=True)
        assert all(pool.map(first, [kind] * 4))
"""


@pytest.mark.not_fast
def test_the_first_readers_of_a_type_may_be_many_threads() -> None:
    run = subprocess.run([sys.executable, "-c", FIRSTS], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")
