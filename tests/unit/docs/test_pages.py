"""Pages and files that are written from the code, or for it: none is stale, none names what does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.config.api.explain import Scope, explain_all
from broker.config.definitions import BROKER
from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.wire.apis import APIS
from tests.pages import PAGES
from tests.pages.compatibility import DIFFERENCES, TOOLS
from tests.pages.kafka_apis import LEFT_OUT, TABLE
from tests.support.processes.broker_process import running_broker
from tests.support.repository import ROOT
from thermocline.cli.clients.connection_properties import use
from thermocline.cli.main import main
from thermocline.cli.serve.secure.settings import CLIENTS

SAMPLE = ROOT / "packaging/server.properties"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_what_the_code_says(name: str) -> None:
    """`make pages` writes them; a change of a request or config that leaves a page behind fails here."""
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), f"{name} is stale: run `make pages`"


def test_every_request_of_kafkas_is_served_or_left_out_for_a_reason() -> None:
    """And what is served is Kafka's, in no version that Kafka has not."""
    kafkas = {api.name: api for api in TABLE}
    served = {api.name: api for api in APIS.values() if not api.brokers_only}
    assert served.keys() | LEFT_OUT.keys() == kafkas.keys()
    assert not served.keys() & LEFT_OUT.keys()
    for name, api in served.items():
        assert int(api.key) == kafkas[name].key
        assert kafkas[name].version_min <= api.version_min <= api.version_max <= kafkas[name].version_max, name


def test_every_config_is_on_the_page() -> None:
    """Names in code on the page are all configs there are, but for Kafka's internal ones."""
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z][\w.]*)`", text))
    for scope in Scope:
        assert {entry.name for entry in explain_all(scope)} <= named


def test_what_differences_and_tools_point_to_exists() -> None:
    """A test that was renamed or a page that moved would make the page a claim without proof."""
    for where in (*(found.where for found in DIFFERENCES), *(test for _, test in TOOLS)):
        assert (ROOT / where).is_file(), where


def test_the_sample_file_shows_true_names_and_defaults() -> None:
    """Each commented line is a config that has an effect, at its default; the others are read as they stand."""
    text = SAMPLE.read_text(encoding="utf-8")
    commented = re.findall(r"^#([a-z][\w.]*)=(.*)$", text, re.MULTILINE)
    assert len(commented) > 10
    for name, value in commented:
        definition = BROKER[name]
        assert definition.honoured, name
        if name in ("thermocline.bucket", "advertised.listeners"):
            continue  # theirs are made from others
        assert definition.parse(definition.with_units(value)) == definition.parse(definition.default), name
    started = resolve({}, [], {}, text, Launch(insecure=True), CLIENTS)  # --secure protects the addresses
    assert started.ignored == ()
    everything = "\n".join(
        line.removeprefix("#") if re.match(r"#[a-z][\w.]*=", line) else line for line in text.split("\n")
    )
    assert (
        resolve({}, [], {}, everything, Launch(insecure=True), CLIENTS).listeners[0].advertised_host
        == "broker.example.com"
    )


@pytest.mark.not_fast
def test_a_broker_starts_with_the_sample_file(tmp_path: Path) -> None:
    """As its first lines say, on free ports and a directory of this test; the first user reaches it."""
    with running_broker(tmp_path / "data", None, "--secure", "--config", str(SAMPLE)) as broker:
        assert broker.ready["node"] == "1"
        admin = str(tmp_path / "data" / "admin.properties")
        assert main(["topic", "list", "-b", broker.kafka, "--command-config", admin]) == 0
        use(None, [])
        broker.stop()
