"""Pattern of transactional ids in ListTransactions (KIP-1152), whose matches take bounded time.

Kafka's RE2J needs no bound, because its time is linear. Python's `re` tries every way through a pattern: each choice
among alternatives multiplies the ways, and each repetition multiplies them by the length of the id. A client would
otherwise hold the event loop for hours. Pure.
"""

from __future__ import annotations

import re
from typing import Final

STEPS_MAX: Final = 10_000_000
"""Most steps of a match, 1 to 2 ns each. With two repetitions and a pattern of 20 characters, an id may have 700
characters."""
_PATTERN_CHARS_MAX: Final = 256
_PATHS_MAX: Final = 256
_REPETITIONS_MAX: Final = 2
_COUNT_MAX: Final = 1_000  # greatest count of a repetition, as in RE2J
_GROUP_BEGINS: Final = re.compile(r"\(\?(?::|P?<[A-Za-z_]\w*>)")
"""Beginning of a group that captures nothing or has a name. In a match of the whole text such groups are plain
parentheses.
"""
_READ_OTHERWISE: Final = re.compile(r"\[[\[:]|[*+?}]\+|\{,|\\[^AbBdDfnrsStvwWx\W]")
"""Refused syntax: sets in sets, `[:` (RE2J knows `[:digit:]` anywhere in a set), possessive repetitions, counts without
a minimum (RE2J reads `{,2}` as characters), and escapes of letters that only one of Python and RE2J knows.
"""
_REPETITION: Final = re.compile(r"[*+?{]")
_TOKEN: Final = re.compile(rf"{_GROUP_BEGINS.pattern}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


class IdPattern:
    """A pattern for whole ids. The constructor raises `re.error` for syntax that Python and RE2J read differently, that
    only one of them knows, or whose match would take too long."""

    def __init__(self, text: str) -> None:
        if len(text) > _PATTERN_CHARS_MAX:
            raise re.error("too long")
        self.source = "".join("(" if _GROUP_BEGINS.fullmatch(token) else token for token in _TOKEN.findall(text))
        self._repetitions = len(_REPETITION.findall(self.source))
        if self._repetitions > _REPETITIONS_MAX or re.search(r"\)\s*[*+{?]|\(\?|\\\d", self.source):
            raise re.error("too complex: use characters, classes and their repetitions")
        counts = re.findall(r"[{,](\d{1,9})", self.source)
        if _READ_OTHERWISE.search(self.source) or any(int(count) > _COUNT_MAX for count in counts):
            raise re.error("RE2J does not know this syntax, or it is not served here")
        self._compiled = re.compile(self.source, re.ASCII)
        paths = _paths(self.source)
        if paths > _PATHS_MAX:
            raise re.error("too complex: there are too many ways through its alternatives")
        self._steps = paths * len(self.source)

    def steps(self, transactional_id: str) -> int:
        """The most steps of a match with the id."""
        return self._steps * int(max(len(transactional_id), 1) ** self._repetitions)

    def matches(self, transactional_id: str) -> bool:
        return self._compiled.fullmatch(transactional_id) is not None


def _paths(source: str) -> int:
    """The number of ways through the alternatives of a valid pattern."""
    outer: list[tuple[int, int]] = []
    before, path = 0, 1  # ways of the earlier alternatives of this group, and of the present one
    for token in _TOKEN.findall(source):
        if token == "(":
            outer.append((before, path))
            before, path = 0, 1
        elif token == "|":
            before, path = before + path, 1
        elif token == ")":
            group = before + path
            before, path = outer.pop()
            path *= group
    return before + path
