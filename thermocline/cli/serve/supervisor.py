"""Supervisor of `thermocline serve --brokers N`: runs N brokers in child processes.

`supervision` decides, and this module acts. Every address must be free before the first broker starts (D58). A child
stops cleanly when its stdin pipe closes, so none outlives the supervisor. Terminal signals reach only the supervisor; a
second signal ends all brokers at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.config.network.addresses import show_address
from seams.net import SocketBuffers, TcpNet
from thermocline.cli.serve.brokers_plan import Child, plan, ready_line
from thermocline.cli.serve.process import HangUp
from thermocline.cli.serve.supervision import Command, Do, Supervision
from thermocline.cli.terminal.outcome import CommandFailed, Exit

log = logging.getLogger("thermocline.brokers")

_AT_ONCE_S: Final = 5.0  # time from the second signal to SIGKILL


def run_many(config: BrokerConfig, given: argparse.Namespace, count: int) -> int:
    """Run `count` brokers until a signal; returns the exit code. If it raises ConfigError or CommandFailed, no broker
    was started."""
    children = plan(config, given, count)
    return asyncio.run(_serve(children, config.data_dir))


async def _serve(children: Sequence[Child], data_dir: str) -> int:
    await _check_addresses(children)
    log.info(
        "%d brokers, node ids %d to %d, below %s", len(children), children[0].node_id, children[-1].node_id, data_dir
    )
    return await _Supervisor(children, data_dir).run()


async def _check_addresses(children: Sequence[Child]) -> None:
    """Raises CommandFailed, exit 3, when a needed address is in use."""
    bound = []
    try:
        for child in children:
            for flag, host, port in child.addresses:
                try:
                    bound.append(await TcpNet().bind(host, port, asyncio.Protocol, SocketBuffers()))
                except OSError as refused:
                    raise CommandFailed(
                        f"broker {child.node_id} cannot listen on {show_address(host, port)} ({flag}): {refused}; stop "
                        f"what uses the address, or choose another {flag}: the brokers need {len(children)} "
                        f"ports in a row",
                        Exit.REFUSED,
                    ) from refused
    finally:
        for listener in bound:
            await listener.close()


class _Supervisor:
    """One run. Events are handled in one event loop, in order."""

    def __init__(self, children: Sequence[Child], data_dir: str) -> None:
        self._children = {child.node_id: child for child in children}
        self._data_dir = data_dir
        self._machine = Supervision([child.node_id for child in children])
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: dict[int, dict[str, str]] = {}
        self._serving: set[int] = set()
        self._stopping: set[int] = set()
        self._happened = asyncio.Event()
        self._ended = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, HangUp(self._reload, lambda: self._signalled(signal.SIGHUP)))
        async with asyncio.TaskGroup() as group:
            self._group = group
            restarts = group.create_task(self._restart_due())
            self._perform(self._machine.begin())
            await self._ended.wait()
            restarts.cancel()
        return self._machine.exit_code

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command.do:
                case Do.START:
                    self._group.create_task(self._run_child(self._children[command.node_id]))
                case Do.ANNOUNCE:
                    print(ready_line(list(self._children.values()), self._ready, self._data_dir), flush=True)
                case Do.STOP:
                    self._stopping.add(command.node_id)
                    if (process := self._processes.get(command.node_id)) is not None:
                        self._close_input(process)
                case Do.END:
                    self._ended.set()
        self._happened.set()

    async def _run_child(self, child: Child) -> None:
        node_id, now_s = child.node_id, asyncio.get_running_loop().time
        command = (sys.executable, "-m", "thermocline", *child.arguments)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True
            )
        except OSError as failed:
            log.error("broker %d cannot be started: %s", node_id, failed)
            self._perform(self._machine.exited(node_id, Exit.FAILED, now_s()))
            return
        log.info("broker %d is process %d", node_id, process.pid)
        self._processes[node_id] = process
        if node_id in self._stopping:  # it was told to stop while it started
            self._close_input(process)
        await self._read_ready_line(node_id, process)
        code = await process.wait()
        del self._processes[node_id]
        self._serving.discard(node_id)
        level = logging.INFO if code == Exit.DONE else logging.ERROR
        log.log(level, "broker %d (process %d) ended %s", node_id, process.pid, _how(code))
        self._perform(self._machine.exited(node_id, code, now_s()))
        if (due_s := self._machine.due_s) is not None and not self._machine.ending:
            log.info("broker %d is started again in %.0f s", node_id, max(due_s - now_s(), 0))

    async def _read_ready_line(self, node_id: int, process: asyncio.subprocess.Process) -> None:
        """Read its stdout to the end; only the ready line matters."""
        assert process.stdout is not None
        async for line in process.stdout:
            word, _, rest = line.decode(errors="replace").strip().partition(" ")
            if word != "ready":
                continue
            ready = {name: value for name, _, value in (part.partition("=") for part in rest.split())}
            self._ready[node_id] = ready
            self._serving.add(node_id)
            self._children[node_id] = self._children[node_id].at_addresses(ready)
            log.info("broker %d serves: kafka=%s http=%s", node_id, ready["kafka"], ready["http"])
            self._perform(self._machine.ready(node_id, asyncio.get_running_loop().time()))

    async def _restart_due(self) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            self._happened.clear()
            due_s = self._machine.due_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._happened.wait()
            self._perform(self._machine.due(now_s()))

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1:
            count = len(self._processes)
            log.info("%s: stopping %d broker%s", number.name, count, "s" * (count != 1))
            self._perform(self._machine.stop())
            return
        log.warning("second %s: stopping at once", number.name)
        self._machine.exit_code = Exit.FAILED
        for process in self._processes.values():
            self._close_input(process)
        self._send(signal.SIGTERM)  # the child's second signal, after the end of its stdin
        asyncio.get_running_loop().call_later(_AT_ONCE_S, self._send, signal.SIGKILL)

    def _reload(self) -> None:
        """Make each serving broker read its files again. A starting broker reads them anyway, and may not have its
        signal handler yet."""
        for node_id in self._serving:
            self._send_to(self._processes[node_id], signal.SIGHUP)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            self._send_to(process, number)

    @staticmethod
    def _send_to(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            process.send_signal(number)

    @staticmethod
    def _close_input(process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.close()


def _how(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by signal {-code} ({signal.strsignal(-code)})"
