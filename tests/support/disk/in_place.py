"""Blocking calls that are given a log, or a path of one, and whether they are counted in its place.

Owns one question of a call of `Workers`: what of a log does it carry? Always true: a call that carries a log, an open
log, a lease, or a path in a log's directory, in its arguments, as its object, or in a closure, was begun by a place
(`hotstore.host.place.CALLER` says so), which waits for it before the directory is another log's; what works on an open
file or on bytes names nothing, and may be as late as it likes. Looks no deeper than at the attributes of the object
whose method is called: what a call is given is what its author wrote. Must not know what calls do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from hotstore.host.lease import Lease
from hotstore.host.log_host import OpenLog
from hotstore.host.place import CALLER
from hotstore.log.partition_log import PartitionLog
from tests.support.disk.crash_disk import CrashDirectory, CrashFile

OF_A_LOG: Final = re.compile(r"/data(?:/[^/]+)?/[^/]+-[0-9]+(?:/|$)")
"""A path in a log's directory of a simulated broker; the name of one that was set aside ends in a word."""
_KNOWN: Final = (PartitionLog, OpenLog, Lease)
_OPEN: Final = (CrashFile, CrashDirectory)  # their paths are for messages
_PLAIN: Final = (bytes, bytearray, memoryview, int, float, type(None))


def must_be_in_a_place(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Fails where a call carries something of a log and no place counts it. There is no exception: the data directory's
    own files (checkpoints, meta.properties, what was set aside) are reached by its path alone."""
    if CALLER.get() is None and (carried := next(_carried(function, args), None)) is not None:
        name = getattr(function, "__qualname__", repr(function))
        raise AssertionError(f"late: {name} is given {carried} and no place counts it: `Lease.call` does")


def _carried(function: Callable[..., Any], args: tuple[Any, ...], *, is_called: bool = True) -> Iterator[str]:
    for value in args:
        yield from _of_a_log(value)
    while isinstance(function, partial):
        for value in (*function.args, *function.keywords.values()):
            yield from _of_a_log(value)
        function = function.func
    if (owner := getattr(function, "__self__", None)) is not None:
        yield from _named(owner)
        if is_called and not isinstance(owner, _OPEN):
            for value in _attributes(owner):
                yield from _named(value)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield from _of_a_log(cell.cell_contents)
        except ValueError:  # not bound yet
            continue


def _of_a_log(value: Any) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        return
    if isinstance(value, list | tuple | frozenset | set):
        for one in value:
            yield from _of_a_log(one)
    elif isinstance(value, dict):
        for one in (*value, *value.values()):
            yield from _of_a_log(one)
    elif isinstance(value, FunctionType | MethodType | partial):
        yield from _carried(value, (), is_called=False)
    else:
        yield from _named(value)


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, _KNOWN):
        yield f"a {type(value).__name__}"
    elif isinstance(value, str) and OF_A_LOG.match(value):
        yield value


def _attributes(owner: Any) -> Iterator[Any]:
    yield from getattr(owner, "__dict__", {}).values()
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(owner, name, None)
