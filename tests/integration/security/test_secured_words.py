"""What a command says of a cluster of `serve --secure` when its own configuration is not right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logformat.properties import format_properties, properties_in
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.site import QUICK, json_lines, thermocline
from thermocline.cli.terminal.outcome import Exit

pytestmark = pytest.mark.timeout(180)

_REFUSED = "its HTTP port refused the token (`thermocline.http.token` of --command-config)"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def admin(directory: Path) -> Path:
    """The first user's configuration."""
    return directory / "one" / "admin.properties"


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[BrokerProcess]:
    with running_broker(directory / "one", f"file://{directory}/bucket", "--secure", settings=QUICK) as found:
        yield found


def run(broker: BrokerProcess, config: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    done = thermocline(*words, "-b", broker.kafka, "--command-config", str(config))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("token", [None, "an-old-token-of-this-port"])
def test_a_command_without_the_http_token_says_what_it_could_not_read(
    broker: BrokerProcess, admin: Path, tmp_path: Path, token: str | None
) -> None:
    """`cluster status` said that nothing is wrong; others showed `-` and said nothing."""
    own = tmp_path / "admin.properties"
    given = dict(properties_in(admin.read_text()))
    told = {name: value for name, value in given.items() if name != "thermocline.http.token"}
    own.write_bytes(format_properties(told | ({} if token is None else {"thermocline.http.token": token})))
    assert run(broker, admin, "cluster", "status")[0] == Exit.DONE
    code, shown, _ = run(broker, own, "cluster", "status")
    assert code == Exit.FAILED and "nothing is wrong" not in shown, shown
    assert f"conditions of broker 1 are not known: {_REFUSED}" in shown
    code, shown, _ = run(broker, own, "cluster", "status", "--json")
    (held,) = [row for row in json_lines(shown) if row["kind"] == "broker"]
    assert code == Exit.FAILED and held["conditions"] is None
    code, shown, said = run(broker, own, "tier", "status")
    assert code == Exit.DONE and _REFUSED in shown, shown
    for words in (("tier", "status", "--json"), ("topic", "list"), ("cluster", "rebalance", "--dry-run")):
        code, _, said = run(broker, own, *words)
        assert code == Exit.DONE and _REFUSED in said, (words, said)


@pytest.mark.parametrize("words", [("topic", "list"), ("topic", "describe", "t"), ("cluster", "status")])
def test_a_command_without_tls_is_told_that_the_port_may_want_it(broker: BrokerProcess, words: tuple[str, ...]) -> None:
    """It was asked whether the broker runs."""
    done = thermocline(*words, "-b", broker.kafka)
    assert done.returncode == Exit.FAILED
    assert "The port may want TLS or a login: give --command-config (security.protocol)" in done.stderr, done.stderr
