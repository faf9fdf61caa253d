"""docs/operations.md, what needs no running broker: its listeners are a configuration, and no route is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.config.sources import ConfigError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()


def test_the_listeners_of_the_example_start_as_the_page_says() -> None:
    """With --insecure, which it names, and not without."""
    (text,) = re.findall(r"^```properties\n(listeners=.*?)^```", PAGE, re.M | re.S)
    with pytest.raises(ConfigError, match="--insecure"):
        resolve({"log.dirs": "/data"}, [], {}, text, Launch())
    found = resolve({"log.dirs": "/data"}, [], {}, text, Launch(insecure=True))
    assert {listener.name for listener in found.listeners} == {"INNER", "OUTER"}
    assert "--insecure" in PAGE[: PAGE.index(text)].rpartition("\n\n")[0].rpartition("\n\n")[2]


def test_every_route_is_on_the_page() -> None:
    """`/status` and `/broker` were known to `tier status` alone."""
    routes = re.findall(r'add_(get|post)\("([^"]+)"', (ROOT / "broker" / "observe" / "http.py").read_text())
    assert len(routes) >= 6
    for method, path in routes:
        assert f"`{method.upper()} {path}`" in PAGE, path


def test_the_three_brokers_of_the_example_start_as_the_page_says() -> None:
    """The file is one that a broker takes with --insecure; nothing in it is without effect."""
    (text,) = re.findall(r"^```properties\n(node\.id=.*?)^```", PAGE, re.M | re.S)
    with pytest.raises(ConfigError, match="--insecure"):
        resolve({}, [], {}, text, Launch())
    found = resolve({}, [], {}, text, Launch(insecure=True))
    assert (found.node_id, found.rack, found.default_replication_factor) == (1, "a", 3)
    assert found.configured["min.insync.replicas"] == "2" and not found.ignored
    unit = (ROOT / "packaging" / "thermocline.service").read_text()
    (program,) = re.findall(r"^ExecStart=(\S+ serve --config \S+)", unit, re.M)
    assert f"ExecStart={program} --insecure" in PAGE
