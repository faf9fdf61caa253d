"""docs/operations.md, what needs no running broker: its listeners are a configuration, and no route is left out."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.config.sources import ConfigError
from thermocline.cli.serve.secure.setup import secured_config

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()


def secured(directory: Path, text: str) -> BrokerConfig:
    """As `serve --secure --config` reads it on `directory`."""

    def resolved(defaults: Mapping[str, str], *, is_judged: bool = True) -> BrokerConfig:
        return resolve({}, [], {}, text, Launch(insecure=not is_judged), defaults)

    return secured_config(argparse.Namespace(secured_by=None, join=None), resolved, "machine-1")


def test_the_listeners_of_the_example_start_as_the_page_says(tmp_path: Path) -> None:
    """With --secure, which it names, and not without."""
    (text,) = re.findall(r"^```properties\n(listeners=.*?)^```", PAGE, re.M | re.S)
    with pytest.raises(ConfigError, match="--insecure"):
        resolve({"log.dirs": "/data"}, [], {}, text, Launch())
    found = secured(tmp_path, f"{text}log.dirs={tmp_path}/data\nthermocline.bucket=file://{tmp_path}/bucket\n")
    assert {listener.name for listener in found.listeners} == {"INNER", "OUTER"} and not found.insecure
    assert "--secure" in PAGE[: PAGE.index(text)].rpartition("\n\n")[0].rpartition("\n\n")[2]


def test_every_route_is_on_the_page() -> None:
    """`/status` and `/broker` were known to `tier status` alone."""
    routes = re.findall(r'add_(get|post)\("([^"]+)"', (ROOT / "broker" / "observe" / "http.py").read_text())
    assert len(routes) >= 6
    for method, path in routes:
        assert f"`{method.upper()} {path}`" in PAGE, path


def test_the_three_brokers_of_the_example_start_as_the_page_says(tmp_path: Path) -> None:
    """The file is one that a broker takes with --secure; nothing in it is without effect."""
    (text,) = re.findall(r"^```properties\n(node\.id=.*?)^```", PAGE, re.M | re.S)
    with pytest.raises(ConfigError, match="--insecure"):
        resolve({}, [], {}, text, Launch())
    found = secured(tmp_path, re.sub("(?m)^(log.dirs=|thermocline.bucket=).*", "", text) + f"log.dirs={tmp_path}/data")
    assert not found.insecure
    assert (found.node_id, found.rack, found.default_replication_factor) == (1, "a", 3)
    assert found.configured["min.insync.replicas"] == "2" and not found.ignored
    unit = (ROOT / "packaging" / "thermocline.service").read_text()
    (program,) = re.findall(r"^ExecStart=(\S+ serve --secure --config \S+)", unit, re.M)
    assert f"ExecStart={program} --join " in PAGE
