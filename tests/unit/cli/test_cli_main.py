"""The command line as a whole: help, exit codes, what it loads, and `serve` up to the broker."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import thermocline
from broker.config.broker_config import BrokerConfig
from seams import crash_points
from seams.world import World
from tests.support.repository import ROOT
from thermocline.cli.main import main, parser
from thermocline.cli.serve import process as serve
from thermocline.cli.serve.log_lines import JsonLines, TextLines
from thermocline.cli.terminal.outcome import CommandFailed


def parsers(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """`of`, and every parser below it: each has a `--help`."""
    yield of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


def test_every_command_that_asks_a_broker_takes_a_client_configuration() -> None:
    """Else it reaches no secured cluster."""
    options = [{word for action in one._actions for word in action.option_strings} for one in parsers(parser())]
    asking = [words for words in options if "--bootstrap-server" in words]
    assert len(asking) > 20 and all({"--command-config", "-X"} <= words for words in asking)


def test_every_help_has_an_example_that_its_parser_accepts() -> None:
    """The contract: each --help has an example; one that does not parse would be worse than none. They are run by
    tests/integration/cli/test_command_examples.py."""
    found = list(parsers(parser()))
    assert len(found) > 25  # the walk finds nouns and verbs
    for one in found:
        lines = (one.epilog or "").splitlines()[1:]
        assert lines, one.prog
        for line in lines:
            command = re.search(r"(?:^|\W)thermocline ([a-z].*?)(?: > | && |$)", line)
            assert command is not None, line
            parser().parse_args(shlex.split(command[1]))


@pytest.mark.not_fast
def test_help_loads_nothing_heavy() -> None:
    """`thermocline --help` starts fast because it imports argparse and little else."""
    script = "import sys, thermocline.cli.main as m; m.parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(done.stdout.split())
    assert "thermocline.cli.tier.command" in loaded
    heavy = {
        "asyncio",
        "logging",
        "confluent_kafka",
        "pyarrow",
        "boto3",
        "aiobotocore",
        "aiohttp",
        "msgspec",
        "prometheus_client",
        "ssl",
    }
    assert not loaded & heavy


@pytest.mark.not_fast
def test_a_broker_loads_no_other_command() -> None:
    """They took 35 ms and 4 MiB of each broker's start."""
    script = "import sys, thermocline.cli.main as m; m.parser(['serve', '--brokers', '2']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    components = {name.split(".")[2] for name in done.stdout.split() if name.startswith("thermocline.cli.")}
    assert components == {"main", "serve", "terminal"}


def test_every_noun_is_known_before_it_is_loaded() -> None:
    """By the name that it adds: else a command would be there in `--help` alone."""
    [nouns] = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    for noun in nouns.choices:
        [alone] = (action for action in parser([noun])._actions if isinstance(action, argparse._SubParsersAction))
        assert list(alone.choices) == [noun]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["topic", "--help"], 0),
        ([], 2),
        (["frob"], 2),
        (["topic", "create"], 2),
        (["topic", "create", "t", "-p", "0"], 2),
        (["serve", "--data-di", "/x"], 2),
        (["serve", "--http", "127.0.0.1:1", "--no-http"], 2),
        (["bucket", "dump", "file:///b", "KEY", "--log", "--records"], 2),
        (["consume", "-t", "t", "-o", "middle"], 2),
    ],
)
def test_usage_is_exit_2(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """And one line says where to look."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == code
    if code:
        assert "--help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--verbos"], "thermocline"),
        (["consume", "-t", "t", "--from-beginning"], "thermocline consume"),
        (["topic", "create", "t", "5"], "thermocline topic create"),
        (["group", "reset", "g", "--to-latest", "--all-topics"], "thermocline group reset"),
    ],
)
def test_what_a_command_does_not_know_is_looked_up_in_its_own_help(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in that of `thermocline`, which has no flags of commands."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err.splitlines()
    assert (ended.value.code, len(said)) == (2, 2)
    assert said[0].startswith(f"{command}: ") and said[1] == f"(see {command} --help)"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--set", "log.retenton.ms=1"], "log.retention.ms"),
        (["--listen", "0.0.0.0:9092"], "--insecure"),
        (["--secure", "--insecure"], "contradict each other"),
        (["--bucket", "file:///data/inside"], "inside one another"),
        (["--bucket", "s3://key:secret@bucket"], "credentials"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--set", "thermocline.testing=maybe"], "thermocline.testing"),
    ],
)
def test_a_wrong_config_is_exit_2_before_anything_starts(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names what to change, and never repeats a secret."""
    assert main(["serve", "--data-dir", "/data", *flags]) == 2
    err = capsys.readouterr().err
    assert said in err and "secret" not in err.replace("AWS_SECRET_ACCESS_KEY", "")


def configure(*flags: str, environment: dict[str, str] | None = None) -> BrokerConfig:
    return serve.configure(parser().parse_args(["serve", *flags]), environment or {})


def test_flags_stand_for_their_configs(tmp_path: Path) -> None:
    """`--data-dir`, `--listen`, … are configs by another name; the file and the environment are below them."""
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=5\nlisteners=PLAINTEXT://127.0.0.1:1\nlog.retention.ms=1h\n")
    found = configure(
        "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--advertise", "kafka.example:9", "--no-http",
        "--node-id", "7", "--config", str(file), "--take-over", "--bucket", "s3://bucket/x",
        environment={"THERMOCLINE_NUM_PARTITIONS": "6"},
    )  # fmt: skip
    assert (found.listeners[0].port, found.listeners[0].advertised_host, found.http_host) == (0, "kafka.example", None)
    assert (found.node_id, found.num_partitions, found.take_over) == (7, 6, True)
    assert (found.bucket_url, found.configured["log.retention.ms"]) == ("s3://bucket/x", "3600000")


def test_a_bucket_behind_a_link_into_the_data_directory_is_refused(tmp_path: Path) -> None:
    """The comparison is of places, not of names."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(Exception, match="the same directory"):
        configure("--data-dir", str(tmp_path / "data"), "--bucket", f"file://{tmp_path}/link")


def test_crash_points_are_armed_in_testing_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable left in an environment must not kill a broker in service; a wrong name is exit 2."""
    armed: list[str] = []
    monkeypatch.setattr(crash_points, "arm", armed.append)
    serve.arm_crash_point("copy.uploaded", testing=False)
    serve.arm_crash_point(None, testing=True)
    assert armed == []
    serve.arm_crash_point("copy.uploaded:2", testing=True)
    assert armed == ["copy.uploaded:2"]
    monkeypatch.undo()
    with pytest.raises(CommandFailed) as refused:
        serve.arm_crash_point("nowhere", testing=True)
    assert refused.value.code == 2


@pytest.fixture
def fake_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    def install(run: Any) -> None:
        monkeypatch.setitem(sys.modules, "broker.app", types.SimpleNamespace(run=run))

    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield install
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def test_serve_prints_the_ready_line_and_stops_on_sigterm(
    fake_app: Callable[[Any], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line on stdout; everything else, such as ignored configs and the shared disk, on stderr; the app's code."""

    async def run(
        config: BrokerConfig, world: World, stop: asyncio.Event, announce: Callable[[str], None], **_: object
    ) -> int:
        assert await world.workers.run(lambda: 1) == 1
        announce("ready kafka=127.0.0.1:1")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 10)
        return 3

    fake_app(run)
    assert main(["serve", "--data-dir", str(tmp_path / "d"), "--set", "num.io.threads=8"]) == 3
    out, err = capfd.readouterr()
    assert out == "ready kafka=127.0.0.1:1\n"
    assert "num.io.threads" in err and "share a disk" in err and "SIGTERM: stopping" in err
    assert f"thermocline {thermocline.__version__}, pid {os.getpid()}" in err and "stopped with exit code 3" in err


@pytest.mark.not_fast
def test_a_second_sigterm_ends_the_process_at_once(tmp_path: Path) -> None:
    """The operator asked twice: no more draining."""
    script = f"""
import asyncio, os, signal, sys, types
async def run(config, world, stop, announce, **_):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
    await asyncio.sleep(60)
sys.modules["broker.app"] = types.SimpleNamespace(run=run)
from thermocline.cli.main import main
main(["serve", "--data-dir", {str(tmp_path / "d")!r}])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 1
    assert "stopping at once" in done.stderr


def test_log_lines_are_text_or_json() -> None:
    """Both carry time, level, logger, message and the exception."""
    try:
        raise ValueError("boom")
    except ValueError:
        record = logging.LogRecord("broker.app", logging.ERROR, "", 0, "failed: %s", ("x\ny",), sys.exc_info())
    record.created = 1_700_000_000.25
    text = TextLines().format(record)
    assert text.startswith("2023-11-14T22:13:20.250Z ERROR   broker.app: failed: x\ny\n") and "ValueError: boom" in text
    shown = json.loads(JsonLines().format(record))
    assert (shown["time"], shown["level"], shown["message"]) == ("2023-11-14T22:13:20.250Z", "error", "failed: x\ny")
    assert "ValueError" in shown["exception"] and "\n" not in JsonLines().format(record)


def test_crash_points_are_listed_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What a test enumerates."""
    assert main(["debug", "crash-points"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == list(crash_points.POINTS)


@pytest.mark.not_fast
def test_a_reader_that_has_enough_is_no_error() -> None:
    """`thermocline … | head -1` ends quietly."""
    script = f"{sys.executable} -m thermocline debug crash-points | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.endswith("0\n") and done.stderr == ""
