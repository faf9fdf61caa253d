"""The loops as processes, and the harm that is done to them alone.

Owns starting and ending them, by their own process ids. Always true: each next life of a loop has its transactional id;
what ended though nobody ended it is started again, and is a problem unless its client said that it cannot go on. Must
not know brokers.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.soak.load import Actor
from tests.support.repository import ROOT

CANNOT_GO_ON: Final = 3
ENDS_S: Final = 90.0
STACKS_S: Final = 3.0
PAST_SESSION_S: Final = (7.0, 12.0)
PAST_TRANSACTION_S: Final = (14.0, 22.0)
"""Past the loops' session (6 s); also past their transaction's time-out (12 s) and the next look for it (2 s)."""


class Loop:
    """`command`: the program with all but its life and the share of aborts."""

    def __init__(
        self, name: str, group: str, command: Sequence[str], folder: Path, aborted: int, problems: list[str]
    ) -> None:
        self.name, self.group = name, group
        self._command, self._folder, self._aborted, self._problems = command, folder, aborted, problems
        self.lives = self.gave_up = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._older: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    # ── lives ────────────────────────────────────────────────────────────────────────────────────────────────────
    def start(self) -> None:
        """Its next life. One that still runs goes on beside it until it is fenced."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self._process is not None:
            self._older.append(self._process)
        self.lives += 1
        words = [*self._command, str(self.lives), str(self._aborted)]
        with self._file("printed").open("ab") as printed, self._file("errors").open("ab") as errors:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=printed, stderr=errors, cwd=ROOT, env={**os.environ}
            )

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait(30)
                self._process = None

    def pause(self) -> Callable[[], None]:
        """SIGSTOP; what is returned is SIGCONT to the same process."""
        process = self._process
        if process is None or process.poll() is not None:
            return lambda: None
        process.send_signal(signal.SIGSTOP)
        return lambda: process.send_signal(signal.SIGCONT)

    def tend(self) -> None:
        """Start it again where it ended by itself; forget the older ones that were fenced."""
        with self._lock:
            for older in [each for each in self._older if each.poll() is not None]:
                self._older.remove(older)
                self._judge(older.returncode)
            process = self._process
            if process is None or process.poll() is None:
                return
            self._judge(process.returncode)
            self._process = None
            self._start()

    def _judge(self, code: int) -> None:
        self.gave_up += code == CANNOT_GO_ON
        if code != CANNOT_GO_ON:
            self._problems.append(f"loop {self.name} ended by itself with {code}: {self._said()}")

    def end(self) -> None:
        """Tell it to end, wait, and look at its exit code."""
        with self._lock:
            every = [*self._older, *([self._process] if self._process is not None else [])]
            self._older, self._process = [], None
        for process in every:
            assert process.stdin is not None
            process.stdin.close()
        for process in every:
            try:
                code = process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)  # it says where it is
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STACKS_S)
                process.kill()
                process.wait(30)
                self._problems.append(f"loop {self.name} does not end: {self._said()}")
                continue
            if code not in (0, CANNOT_GO_ON):
                self._problems.append(f"loop {self.name}: exit code {code}: {self._said()}")

    def kill_all(self) -> None:
        """At the end of everything, whatever happened."""
        for process in (*self._older, *([self._process] if self._process is not None else [])):
            process.kill()
            process.wait(30)

    # ── what it printed ──────────────────────────────────────────────────────────────────────────────────────────
    def _file(self, kind: str) -> Path:
        return self._folder / f"{self.name}.{kind}"

    def _said(self) -> str:
        return self._file("errors").read_text(errors="replace")[-3000:]

    def told(self, outcome: str) -> list[int]:
        """Milliseconds of each transaction that it was told is `committed` or `aborted`."""
        path = self._file("printed")
        lines = map(str.split, path.read_text().splitlines() if path.exists() else ())
        return [int(words[2]) for words in lines if len(words) == 3 and words[0] == outcome]


class LoopNemesis(Actor):
    """Kills, stops and doubles loops; starts what ended by itself. Harm to one group's loop goes on while another's
    begins; of each group one loop may always work."""

    def __init__(
        self,
        loops: Sequence[Loop],
        rng: random.Random,
        rest_s: tuple[float, float],
        problems: list[str],
        say: Callable[[str], None],
    ) -> None:
        super().__init__("nemesis of the loops", problems)
        self._loops, self._rng, self._rest_s, self._say = loops, rng, rest_s, say
        self.harms: Counter[str] = Counter()
        self.harm_is_over = threading.Event()
        self._held: dict[Loop, tuple[float, Callable[[], None]]] = {}
        """When a loop goes on, and how."""
        self._acts = {
            "kill": self._kill,
            "kill past the session": self._kill_long,
            "stop": self._stop,
            "stop past the transaction": self._stop_long,
            "twin": self._twin,
        }

    def run(self) -> None:
        order: list[str] = []
        due = time.monotonic() + self._rng.uniform(*self._rest_s)
        try:
            while not self.stopping.wait(0.5):
                self._tend(time.monotonic())
                held = {loop.group for loop in self._held}
                free = [loop for loop in self._loops if loop.group not in held]
                if time.monotonic() < due or self.harm_is_over.is_set() or not free:
                    continue
                order = order or self._rng.sample(list(self._acts), len(self._acts))
                kind, loop = order.pop(), self._rng.choice(free)
                self._acts[kind](loop)
                self.harms[kind] += 1
                self._say(f"loop {loop.name}: {kind}")
                due = time.monotonic() + self._rng.uniform(*self._rest_s)
        finally:
            self._tend(math.inf)

    def _tend(self, now: float) -> None:
        for loop in self._loops:
            until, go_on = self._held.get(loop, (math.inf, None))
            if go_on is not None and (until <= now or self.harm_is_over.is_set()):
                del self._held[loop]
                go_on()
            loop.tend()

    def _hold(self, loop: Loop, seconds: tuple[float, float], go_on: Callable[[], None]) -> None:
        self._held[loop] = (time.monotonic() + self._rng.uniform(*seconds), go_on)

    def _kill(self, loop: Loop) -> None:
        loop.kill()
        loop.start()

    def _kill_long(self, loop: Loop) -> None:
        loop.kill()
        self._hold(loop, PAST_SESSION_S, loop.start)

    def _stop(self, loop: Loop) -> None:
        """It goes on as a zombie: its partitions have another owner."""
        self._hold(loop, PAST_SESSION_S, loop.pause())

    def _stop_long(self, loop: Loop) -> None:
        """Its transaction was aborted meanwhile, too."""
        self._hold(loop, PAST_TRANSACTION_S, loop.pause())

    def _twin(self, loop: Loop) -> None:
        """A second process with its id, beside the first."""
        loop.start()
