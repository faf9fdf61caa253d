"""Sarama's own functional tests over SASL_SSL, on one broker of `serve --secure`.

They know no security of their own: the copy that is built has a line more, by which every client logs in. What is left
out is what the tests against one broker without security leave out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.sarama_suite import (
    FIRST_PROXY_PORT,
    LEFT_OUT,
    SEVERAL,
    proxies,
    require_suite,
    run_suite,
)
from tests.support.processes.broker_process import running_broker
from tests.support.processes.ports import free_port
from tests.support.security.suite_cluster import PASSWORD, USER, open_to_logins, secrets

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1500)]


def test_saramas_functional_tests_pass(tmp_path: Path) -> None:
    """By PLAIN: producers, consumers, groups, the admin client, connections that are cut between them."""
    (tmp_path / "suite").mkdir()
    suite = require_suite(tmp_path / "suite", logs_in=True)
    port = free_port()
    flags = ("--secure", "--advertise", f"SASL_SSL://127.0.0.1:{FIRST_PROXY_PORT}")
    settings = {
        **open_to_logins(tmp_path),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
    }
    data_dir = tmp_path / "data"
    environment = {
        "SARAMA_CA": str(data_dir / "security/ca.pem"),
        "SARAMA_USER": USER,
        "SARAMA_PASSWORD": PASSWORD,
    }
    with (
        running_broker(
            data_dir,
            f"file://{tmp_path}/bucket",
            *flags,
            listen=f"127.0.0.1:{port}",
            settings=settings,
            environment=secrets(),
        ) as broker,
        proxies(suite, free_port(), [f"127.0.0.1:{port}"] * 5) as toxiproxy,
    ):
        asked = suite.names() - LEFT_OUT.keys() - SEVERAL
        results, printed = run_suite(suite, toxiproxy, asked, timeout_s=900, environment=environment)
        log = broker.log()
    failed = {name: results.get(name, "never ended") for name in asked if results.get(name) != "PASS"}
    assert not failed, f"{failed}\n{printed[-20_000:]}\n{log[-4_000:]}"
    assert len(asked) > 30
