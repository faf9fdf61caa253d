"""The command line, misused: nobody ever sees a stack trace for what the world or a typist did.

Every command that talks to a broker or a bucket meets addresses that are none, streams that are closed or full, and
signals. Exit codes are the contract's: 2 for what is written wrongly, 1 for what the world refused.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.site import Site, thermocline
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

ASKING = {
    "topic list": ["topic", "list"],
    "topic create": ["topic", "create", "t"],
    "topic describe": ["topic", "describe", "t"],
    "topic alter": ["topic", "alter", "t", "-p", "9"],
    "topic delete": ["topic", "delete", "t", "--yes"],
    "topic trim": ["topic", "trim", "t", "--before", "1"],
    "produce": ["produce", "-t", "t"],
    "consume": ["consume", "-t", "t", "-e"],
    "tier status": ["tier", "status"],
    "tier seal": ["tier", "seal"],
    "cluster status": ["cluster", "status"],
    "cluster drain": ["cluster", "drain", "1"],
    "cluster rebalance": ["cluster", "rebalance"],
    "cluster forget": ["cluster", "forget", "1"],
}
NO_ADDRESS = ["127.0.0.1", "", "a:b", "127.0.0.1:99999999", "127.0.0.1:0", ":9092", "::1:9092", "127.0.0.1:-1",
              "x" * 300 + ":1", "a..b:1", "127.0.0.1:1,", "\udcff:1"]  # fmt: skip
NOBODY = ["127.0.0.1:1", "[::1]:1", "nobody.invalid:9092", "127.0.0.1:1,127.0.0.1:2"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    home = tmp_path_factory.mktemp("misuse")
    site = Site(home, DirectoryBucket(home / "bucket"))
    with site.broker() as running:
        assert site.cli("topic", "create", "t", "-p", "1", "-b", running.kafka).returncode == 0
        done = thermocline("produce", "-t", "t", "-b", running.kafka, stdin="".join(f"{n}\n" for n in range(500)))
        assert done.returncode == 0
        yield running


def in_process(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr; what is raised is a stack trace in a process of its own, and fails the test here."""
    from thermocline.cli.main import main

    try:
        code = main(words)
    except SystemExit as left:
        code = int(left.code or 0)
    shown = capsys.readouterr()
    assert shown.out == "" or code == 0
    return code, shown.err


@pytest.mark.parametrize("address", NO_ADDRESS, ids=ascii)
@pytest.mark.parametrize("words", ASKING.values(), ids=ASKING)
def test_what_is_no_address_is_exit_2(words: list[str], address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Seen before anything is asked."""
    code, said = in_process([*words, "-b", address], capsys)
    assert (code, len(said.splitlines())) == (2, 1), said


@pytest.mark.parametrize("address", NOBODY)
@pytest.mark.parametrize("words", ASKING.values(), ids=ASKING)
def test_where_nobody_listens_is_exit_1(words: list[str], address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At once, with the address and what to check."""
    code, said = in_process([*words, "-b", address], capsys)
    assert (code, len(said.splitlines())) == (1, 1), said
    assert address.split(",")[0] in said and "is -b its address?" in said


NO_TEXT = "a\udcffb"  # a byte that is no UTF-8, as Python passes it


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create", NO_TEXT],
        ["topic", "alter", "t", "-c", f"retention.ms={NO_TEXT}"],
        ["produce", "-t", "t", "-X", f"client.id={NO_TEXT}"],
        ["consume", "-t", NO_TEXT, "-e"],
        ["tier", "seal", "--topic", NO_TEXT],
        ["bucket", "ls", f"file:///{NO_TEXT}"],
        ["archive", NO_TEXT, "--bucket", "file:///b", "--table", "a.b"],
        ["scrub", f"file:///{NO_TEXT}"],
        ["serve", "--data-dir", f"/tmp/{NO_TEXT}"],
        ["log", "dump", NO_TEXT],
        [NO_TEXT],
    ],
    ids=lambda words: " ".join(words[:2]).encode(errors="replace").decode(),
)
def test_bytes_that_are_no_text_are_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """They ended deep in libraries that could not encode them."""
    assert in_process(words, capsys) == (
        2,
        f"thermocline: argument {os.fsencode(next(w for w in words if NO_TEXT in w))!r} is not UTF-8 text\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create", ""],
        ["topic", "delete", "", "--yes"],
        ["topic", "alter", "t", "--reset", ""],
        ["topic", "trim", "", "--before", "1"],
        ["produce", "-t", ""],
        ["produce", "-t", "t", "-K", ""],
        ["consume", "-t", "", "-e"],
        ["consume", "-t", "t", "-g", "", "-e"],
    ],
    ids=" ".join,
)
def test_what_is_empty_is_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`"$TOPIC"` of a variable that is not set. -K "" was a stack trace, -g "" committed for a group nobody named."""
    code, said = in_process([*words, "-b", "127.0.0.1:1"], capsys)
    assert code == 2 and "the value is empty" in said, said


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """`line` in bash, `@` standing for the command."""
    command = f"{sys.executable} -m thermocline"
    return subprocess.run(
        ["bash", "-c", line.replace("@", command)], capture_output=True, text=True, timeout=120, check=False
    )


def test_closed_streams_are_nobodys(broker: BrokerProcess) -> None:
    """stdout, stderr, stdin closed: no stack trace, the exit code as ever, and errors never end up among results."""
    for line, code, out in (
        (f"@ topic list -b {broker.kafka} >&-", 0, ""),
        (f"@ consume -t t -e -b {broker.kafka} >&-", 0, ""),
        (f"@ topic describe nowhere -b {broker.kafka} 2>&-", 1, ""),
        (f"@ topic describe nowhere -b {broker.kafka} >&- 2>&-", 1, ""),
        (f"@ produce -t t -b {broker.kafka} <&-", 0, ""),
        (f"@ topic delete t -b {broker.kafka} <&-", 2, ""),
        ("@ topic nonsense >&- 2>&- <&-", 2, ""),
    ):
        done = shell(line)
        assert (done.returncode, done.stdout) == (code, out), (line, done)
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr, (line, done)


def test_words_come_out_under_every_locale(broker: BrokerProcess) -> None:
    """Results are UTF-8; an ASCII locale ended `consume --help`, and every value beyond ASCII, in a stack trace."""
    ascii_only = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"
    shown = shell(f"{ascii_only} @ consume --help")
    assert shown.returncode == 0 and "…" in shown.stdout
    odd = shell(
        f"printf 'é\\n' | @ produce -t beyond -b {broker.kafka}; {ascii_only} @ topic describe nowhé -b {broker.kafka}"
    )
    assert odd.returncode == 1 and "Traceback" not in odd.stderr, odd
    for look in ("", "--json"):
        done = shell(f"PYTHONIOENCODING=latin-1 @ consume -t beyond -e {look} -b {broker.kafka}")
        assert (done.returncode, done.stderr) == (0, "") and "é" in done.stdout


def test_a_full_disk_behind_stdout_is_told(broker: BrokerProcess) -> None:
    """Once, and with what could not be written."""
    for command in (f"topic list -b {broker.kafka}", f"consume -t t -e -b {broker.kafka}", "debug crash-points"):
        done = shell(f"@ {command} > /dev/full")
        assert done.returncode == 1
        assert done.stderr == "thermocline: writing the results to stdout: No space left on device\n", command


def test_a_reader_that_has_enough_ends_every_reader(broker: BrokerProcess) -> None:
    """`… | head -1`: exit 0 and no word, at once, not at the next record."""
    for command in ("consume -t t", "consume -t t --json", "tier status --watch", "topic list", "tier status --json"):
        done = shell(f"@ {command} -b {broker.kafka} | head -1; echo ${{PIPESTATUS[0]}}")
        assert (done.stdout.splitlines()[-1], done.stderr) == ("0", ""), (command, done)


@pytest.mark.parametrize(
    "words",
    [["consume", "-t", "t"], ["tier", "status", "--watch"], ["cluster", "status", "--watch"]],
    ids=["consume", "watch", "watch-cluster"],
)
def test_interrupted_commands_end_without_a_word(broker: BrokerProcess, words: list[str], tmp_path: Path) -> None:
    """^C is how `consume` and `--watch` are meant to end: exit 0, nothing lost of what was printed."""
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "thermocline", *words, "-b", broker.kafka], stdout=file, stderr=subprocess.PIPE
        )
    wait_until(lambda: out.stat().st_size, "it prints")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"")


def test_an_interrupted_wait_is_130() -> None:
    """A command that waits for a broker that never answers: what a shell expects of ^C, and no stack trace."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "thermocline", "topic", "list", "-b", address], stderr=subprocess.PIPE, text=True
        )
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(4)  # it asked, and waits
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "")


BAD_FILES = {
    "no file": ["log", "dump", "{home}/nothing.log"],
    "a directory": ["log", "dump", "{home}"],
    "no log": ["log", "dump", "{home}/noise"],
    "no bucket": ["bucket", "ls", "file://{home}/nothing"],
    "gc of nothing": ["bucket", "gc", "file://{home}/nothing"],
    "a file as bucket": ["bucket", "ls", "file://{home}/noise"],
    "a file as probed bucket": ["bucket", "probe", "file://{home}/noise"],
    "no url": ["bucket", "verify", "{home}"],
    "relative": ["bucket", "ls", "file://bucket"],
    "no such scheme": ["bucket", "gc", "ftp://x"],
    "no endpoint": ["bucket", "ls", "s3://b?endpoint=nope"],
    "nobody at the endpoint": ["bucket", "ls", "s3://b?endpoint=http://127.0.0.1:1"],
    "no key": ["bucket", "dump", "file://{home}", "../../etc/passwd"],
    "scrub of nothing": ["scrub", "file://{home}/nothing", "--dry-run"],
    "archive of nothing": ["archive", "t", "--bucket", "file://{home}/nothing", "--table", "a.b", "--dry-run"],
    "a file as data directory": ["serve", "--data-dir", "{home}/noise", "--listen", "127.0.0.1:0", "--no-http"],
    "config is a directory": ["serve", "--data-dir", "{home}/d", "--config", "{home}"],
    "config is no text": ["serve", "--data-dir", "{home}/d", "--config", "{home}/noise"],
}


@pytest.mark.parametrize("words", BAD_FILES.values(), ids=BAD_FILES)
def test_files_and_buckets_that_are_none(words: list[str], tmp_path: Path) -> None:
    """A line that names it, an exit code of the contract, and no stack trace."""
    (tmp_path / "noise").write_bytes(os.urandom(300))
    home = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_MAX_ATTEMPTS": "1"}
    done = thermocline(*(word.format(home=tmp_path) for word in words), environment=home, timeout_s=120)
    assert done.returncode in (1, 2, 3, 4), done
    assert "Traceback" not in done.stderr and done.stderr.strip(), done
