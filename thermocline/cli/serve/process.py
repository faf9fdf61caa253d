"""The process of `thermocline serve`: from parsed flags to a running broker.

Sets up the real seams, logging, signals and the ready line. The first SIGTERM or SIGINT stops cleanly, the second at
once. SIGHUP reloads. A supervised broker also stops when its stdin closes. Crash points are armed in testing only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final

import thermocline
from broker.config.broker_config import BrokerConfig
from seams.interpreter import this_build
from thermocline.cli.terminal.outcome import CommandFailed, Exit, plain_words

log = logging.getLogger("thermocline.serve")

PLAIN_BUILD: Final = "a build with PGO takes 8 to 20 % less CPU for small requests; see docs/operations.md, Sizing"

_INPUT: Final = 0  # standard input

# Flags that set a config (cli contract); the others concern this process only.
_CONFIG_OF_FLAG = {
    "data_dir": "log.dirs",
    "bucket": "thermocline.bucket",
    "listen": "listeners",
    "advertise": "advertised.listeners",
    "http": "thermocline.http",
    "node_id": "node.id",
    "rack": "broker.rack",
    "internal": "thermocline.internal",
}


def run(arguments: argparse.Namespace) -> int:
    configuration = Configuration(arguments, os.environ)
    config = configured(arguments, configuration)
    if config.read_only and arguments.brokers is not None:
        raise CommandFailed(
            "--read-only starts one broker: leave out --brokers, and start each further one with a command of its own",
            Exit.USAGE,
        )
    count = None if arguments.supervised or config.read_only else brokers_wanted(arguments.brokers, config)
    name = f"broker-{config.node_id}" if arguments.supervised else None
    set_up_logging(arguments.log_format, arguments.log_level, name)
    if count is not None:
        from thermocline.cli.serve.supervisor import run_many

        warn_of_one_disk(config)
        return run_many(config, arguments, count)
    log.info("thermocline %s, pid %d, on %s", thermocline.__version__, os.getpid(), config.data_dir)
    build = this_build()
    log.info("%s%s", build, "" if build.optimised is not False else f": {PLAIN_BUILD}")
    if config.ignored:
        log.info("Kafka configs that have no effect here: %s", ", ".join(config.ignored))
    warn_of_one_disk(config)
    arm_crash_point(os.environ.get("THERMOCLINE_CRASH_AT"), testing=config.testing)
    code = run_broker(config, ends_with_input=arguments.supervised, reread=configuration.again)
    log.log(logging.INFO if code == Exit.DONE else logging.ERROR, "stopped with exit code %d", code)
    return code


def brokers_wanted(asked: str | None, config: BrokerConfig) -> int | None:
    """The number of brokers that --brokers asks for; None if this process is the only broker. Raises ConfigError."""
    from thermocline.cli.serve.brokers_found import cores, count_of, layout_of

    return count_of(asked, layout_of(config.data_dir), config.node_id, cores(), config.data_dir)


def warn_of_one_disk(config: BrokerConfig) -> None:
    if config.bucket_is_default:
        log.warning("no --bucket given: the cold tier is %s, so both tiers share a disk", config.bucket_url)


class Configuration:
    """The broker's configuration, from flags, environment and file. A reload reads the file again, over the same
    defaults. Raises ConfigError, or CommandFailed for an unreadable file.
    """

    def __init__(self, arguments: argparse.Namespace, environment: Mapping[str, str]) -> None:
        from broker.config.places import Launch

        self._file, self._sets, self._environment = arguments.config, arguments.set, environment
        given = {
            name: value for flag, name in _CONFIG_OF_FLAG.items() if (value := getattr(arguments, flag)) is not None
        }
        self.flags = given | ({"thermocline.http": ""} if arguments.no_http else {})
        self.launch = Launch(
            take_over=arguments.take_over,
            read_only=arguments.read_only,
            insecure=arguments.insecure,
            host_name=socket.gethostname(),
            working_dir=os.getcwd(),
        )
        self._defaults: Mapping[str, str] = {}
        self._text = self._file_text()

    def resolved(self, defaults: Mapping[str, str], *, is_judged: bool = True) -> BrokerConfig:
        from broker.config.resolve import resolve

        self._defaults = defaults
        judged = self.launch if is_judged else self.launch._replace(insecure=True)
        return resolve(self.flags, self._sets, self._environment, self._text, judged, defaults)

    def again(self) -> BrokerConfig:
        """The configuration, after the file was read again."""
        from broker.config.sources import ConfigError

        try:
            self._text = self._file_text()
        except CommandFailed as failed:
            raise ConfigError(str(failed)) from failed
        return self.resolved(self._defaults)

    def _file_text(self) -> str | None:
        if self._file is None:
            return None
        try:
            with open(self._file, encoding="utf-8") as file:
                return file.read()
        except OSError as failed:
            raise CommandFailed(f"--config {plain_words(failed)}", Exit.USAGE) from failed
        except UnicodeDecodeError as failed:
            raise CommandFailed(f"--config {self._file}: {failed}", Exit.USAGE) from failed


def configure(arguments: argparse.Namespace, environment: Mapping[str, str]) -> BrokerConfig:
    """The configuration of a start. Raises ConfigError, or CommandFailed for an unreadable file."""
    return configured(arguments, Configuration(arguments, environment))


def configured(arguments: argparse.Namespace, configuration: Configuration) -> BrokerConfig:
    """As `configure`, from `configuration`. With --secure, missing keys and certificates are made."""
    from broker.config.places import nested
    from broker.config.sources import ConfigError
    from coldstore.url import DirectoryUrl, parse_bucket_url

    if arguments.secure and arguments.insecure:
        raise CommandFailed("--secure and --insecure contradict each other: leave one of them out", Exit.USAGE)
    if arguments.secure:
        from thermocline.cli.serve.secure.settings import listener_text
        from thermocline.cli.serve.secure.setup import secured_config

        flags = configuration.flags
        for name in ("listeners", "advertised.listeners"):
            if name in flags:
                flags[name] = listener_text(flags[name])
        config = secured_config(arguments, configuration.resolved, configuration.launch.host_name)
    elif arguments.join is not None:
        raise CommandFailed("--join is for --secure: give both, or neither", Exit.USAGE)
    else:
        config = configuration.resolved({})
        _refuse_unsecured(config)
    bucket = parse_bucket_url(config.bucket_url)
    if bucket.key_file is not None:
        from coldstore.encryption.key_file import KeyFileRefused, load_ring

        try:
            load_ring(bucket.key_file)  # a key service is asked here, before the loop runs
        except KeyFileRefused as refused:
            raise ConfigError(str(refused)) from refused
    if isinstance(bucket, DirectoryUrl) and nested(os.path.realpath(bucket.path), os.path.realpath(config.data_dir)):
        raise ConfigError(
            f"bucket {bucket.path} and data directory {config.data_dir} are the same directory, "
            "through a link; give the bucket one of its own"
        )
    check_certificates(config)
    return config


def check_certificates(config: BrokerConfig) -> None:
    """Check the certificates, which are part of the configuration. Raises InvalidConfig."""
    from broker.security.tls.certificates import Certificates
    from seams.clock import SystemClock
    from seams.files.posix_disk import PosixDisk

    Certificates(config, PosixDisk(), SystemClock())


def _refuse_unsecured(config: BrokerConfig) -> None:
    """Refuse to serve a secured directory without authentication if --secure was forgotten."""
    from pathlib import Path

    from thermocline.cli.serve.secure.layout import authority_file, is_secured

    data_dir = Path(config.data_dir)
    if config.authorizer is None and not config.read_only and is_secured(data_dir):
        raise CommandFailed(
            f"{config.data_dir} was secured, and without --secure everybody who reaches the broker may do everything: "
            "add --secure, or configure an authorizer and listeners yourself; to serve it openly on purpose, move "
            f"{authority_file(data_dir).parent} away first",
            Exit.REFUSED,
        )


def arm_crash_point(spec: str | None, *, testing: bool) -> None:
    """Arm `<point>[:n]`, in testing only."""
    from seams.crash_points import arm

    if spec is None:
        return
    if not testing:
        log.warning("THERMOCLINE_CRASH_AT is ignored without --set thermocline.testing=true")
        return
    try:
        arm(spec)
    except ValueError as unknown:
        raise CommandFailed(f"THERMOCLINE_CRASH_AT={spec}: {unknown}", Exit.USAGE) from unknown


def set_up_logging(log_format: str, level: str, broker: str | None) -> None:
    """Lines on stderr, as text or JSON; `broker`: a name in every line."""
    from thermocline.cli.serve.log_lines import JsonLines, NoFlood, TextLines

    handler = logging.StreamHandler()
    handler.addFilter(NoFlood())
    handler.setFormatter(JsonLines(broker) if log_format == "json" else TextLines(broker))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Both clients log where they found the credentials; one line is enough.
    logging.getLogger("aiobotocore.credentials").setLevel(logging.WARNING)


def run_broker(
    config: BrokerConfig, *, ends_with_input: bool = False, reread: Callable[[], BrokerConfig] | None = None
) -> int:
    """Run `broker.app.run` with the real seams and signal handlers; returns its exit code. `ends_with_input`: the end
    of stdin stops it. `reread` reads the configuration again, for a reload.
    """
    gc.disable()  # what is imported lives as long as the process: collections during the imports take 20 to 40 ms
    from broker.app import run as run_app
    from seams.clock import SystemClock
    from seams.files.descriptors import raise_limit
    from seams.files.posix_disk import PosixDisk
    from seams.files.syncs import KernelSyncs
    from seams.loop.beats import BEAT_S, Beats
    from seams.loop.workers import ThreadWorkers
    from seams.net import TcpNet
    from seams.rng import SystemRng
    from seams.world import World

    gc.freeze()
    gc.enable()
    raise_limit()
    workers = ThreadWorkers()
    syncs = KernelSyncs(workers)
    rng = SystemRng()
    beats = Beats(rng.uniform(0.0, BEAT_S))
    locks = ExitStack()
    world = World(
        PosixDisk(),
        workers,
        syncs,
        SystemClock(),
        rng,
        TcpNet(),
        keep_objects=gc.freeze,
        after_workers=locks.callback,
        beats=beats,
    )

    async def serve() -> int:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _stop, stop, number)
        hang_up = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, HangUp(hang_up.set, lambda: _stop(stop, signal.SIGHUP))
        )
        if ends_with_input:
            asyncio.get_running_loop().add_reader(_INPUT, _input, stop)
        return await run_app(config, world, stop, announce, reread=reread, hang_up=hang_up)

    try:
        return asyncio.run(serve())
    finally:
        syncs.close()
        workers.close()
        locks.close()


class HangUp:
    """Handles SIGHUP: reloads, or stops if the terminal of the start is gone and the process was not started by
    `nohup`. It must be made before a handler is installed.
    """

    def __init__(self, reload: Callable[[], None], stop: Callable[[], None]) -> None:
        self._reload = reload
        self._stop = stop
        self._ends_with_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and _has_terminal()

    def __call__(self) -> None:
        if self._ends_with_terminal and not _has_terminal():
            self._stop()
        else:
            self._reload()


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def announce(line: str) -> None:
    """Print the ready line and flush, because the parent process waits for it."""
    print(line, flush=True)


def _input(stop: asyncio.Event) -> None:
    """Stdin closed: the supervisor asks for a stop, or is gone."""
    if os.read(_INPUT, 4096):
        return
    asyncio.get_running_loop().remove_reader(_INPUT)
    if not stop.is_set():
        log.info("stopping: the supervisor asked for it, or has ended")
        stop.set()


def _stop(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        # No cleanup: the log recovers from this as from kill -9, and the operator asked twice.
        log.warning("second %s: stopping at once", number.name)
        logging.shutdown()
        os._exit(Exit.FAILED)
    log.info("%s: stopping", number.name)
    stop.set()
