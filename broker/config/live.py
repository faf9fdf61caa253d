"""The configuration a broker runs with now: what it started with, under what was set since.

Owns the one value that everybody reads anew (`now`) and who is told when it changes. Always true: a set value that this
version cannot use (another version wrote it) is named in the log and left out; it never keeps a broker from starting.
Must not know where overrides are kept, or who may set them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from broker.config.broker_config import BrokerConfig
from broker.config.definitions import BROKER
from broker.config.resolve import with_overrides
from broker.config.values import InvalidConfig
from broker.config.without_effect import reason_of

log = logging.getLogger(__name__)


class LiveConfig:
    """`started`: as resolved from flags, environment and file."""

    def __init__(self, started: BrokerConfig) -> None:
        self.now = started
        self._started = started
        self._followers: list[Callable[[BrokerConfig], None]] = []

    def tell(self, follower: Callable[[BrokerConfig], None]) -> None:
        """Call `follower` with every later configuration, at once when it changes."""
        self._followers.append(follower)

    def follow(self, cluster_overrides: Mapping[str, str], own_overrides: Mapping[str, str]) -> bool:
        """Let `now` obey these; whether that changed anything."""
        now = with_overrides(self._started, _usable(cluster_overrides), _usable(own_overrides))
        if now == self.now:
            return False
        for name in sorted(now.configured.keys() - self.now.configured.keys()):
            if not BROKER[name].honoured:
                log.warning("%s is set, and has no effect here: %s", name, reason_of(name))
        self.now = now
        for follower in self._followers:
            follower(now)
        return True


def _usable(overrides: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, text in overrides.items():
        definition = BROKER.get(name)
        try:
            if definition is None or not definition.dynamic:
                raise InvalidConfig("it cannot be changed while a broker runs")
            definition.parse(text)
        except InvalidConfig as refused:
            log.error("the dynamic config %s=%s has no effect: %s; delete it or set it anew", name, text[:80], refused)
        else:
            found[name] = text
    return found
