"""`thermocline quota` as a script sees it, on a running broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.processes.broker_process import running_broker

Quota = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def quota(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quota]:
    with running_broker(tmp_path_factory.mktemp("quota") / "data", None) as broker:

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "thermocline", "quota", *words, "-b", broker.kafka]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        yield run


def test_quotas_are_set_listed_and_deleted(quota: Quota) -> None:
    done = quota("set", "--user", "alice", "producer_byte_rate=10MiB", "request_percentage=12.5")
    assert (done.returncode, done.stdout) == (
        0,
        "set quotas of user alice: producer_byte_rate=10485760, request_percentage=12.5\n",
    )
    assert quota("set", "--user", "alice", "--default-client", "consumer_byte_rate=1024").returncode == 0
    assert quota("set", "--default-ip", "connection_creation_rate=50").returncode == 0
    rows = [json.loads(line) for line in quota("list", "--json").stdout.splitlines()]
    assert rows == [
        {"entity": {"client-id": None, "user": "alice"}, "quotas": {"consumer_byte_rate": 1024.0}},
        {"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 10485760.0, "request_percentage": 12.5}},
        {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 50.0}},
    ]
    assert quota("list").stdout.splitlines()[:2] == [
        "user   client     ip         quotas",
        "alice  <default>  -          consumer_byte_rate=1024",
    ]
    assert len(quota("list", "--default-ip", "--json").stdout.splitlines()) == 1
    done = quota("delete", "--user", "alice", "producer_byte_rate")
    assert (done.returncode, done.stdout) == (0, "deleted quotas of user alice: producer_byte_rate\n")
    assert quota("delete", "--user", "alice").stdout == "deleted quotas of user alice: request_percentage\n"
    assert quota("delete", "--user", "alice", "--default-client").returncode == 0
    assert quota("delete", "--default-ip").returncode == 0
    assert quota("list", "--json").stdout == ""


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("set", "producer_byte_rate=1"), 2, "no entity: give"),
        (("set", "--user", "a", "producer_byte_rate=fast"), 2, "is not a size"),
        (("set", "--user", "a", "request_percentage=much"), 2, "is not a number"),
        (("set", "--user", "a", "--default-user", "request_percentage=1"), 2, "not allowed with"),
        (("set", "--user", "a", "nonsense=1"), 1, "Invalid configuration key nonsense"),
        (("set", "--user", "a", "--ip", "::1", "producer_byte_rate=1"), 1, "Invalid quota entity combination"),
        (("delete", "--user", "nobody"), 1, "user nobody has no quota: nothing was deleted"),
        (("delete",), 2, "no entity: give"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(quota: Quota, words: tuple[str, ...], code: int, why: str) -> None:
    done = quota(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr and "Traceback" not in done.stderr
