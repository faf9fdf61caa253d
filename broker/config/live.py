"""Current configuration of a running broker: that of its start, plus overrides set at run time.

An override that this release cannot use (another release wrote it) is logged and left out; it never prevents a start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from broker.config.broker_config import BrokerConfig
from broker.config.cleaner import cleaner_refusal
from broker.config.definitions import broker_definition
from broker.config.kafka.without_effect import reason_of
from broker.config.network.key_stores import check_key_store
from broker.config.resolve import with_overrides
from broker.config.sources import Explicit
from broker.config.values import InvalidConfig

log = logging.getLogger(__name__)


class LiveConfig:
    """The configuration of a running broker. `now`: the current configuration; read it again for each use. `started`:
    the configuration from flags, environment and file."""

    def __init__(self, started: BrokerConfig) -> None:
        self.now = started
        self._started = started
        self._subscribers: list[Callable[[BrokerConfig], None]] = []

    def subscribe(self, subscriber: Callable[[BrokerConfig], None]) -> None:
        """Call `subscriber` with every later configuration, as soon as the configuration changes."""
        self._subscribers.append(subscriber)

    def apply(self, cluster_overrides: Mapping[str, str], own_overrides: Mapping[str, str]) -> bool:
        """Apply these overrides. Returns whether the configuration changed."""
        static = self._started.static
        now = with_overrides(self._started, _usable(static, cluster_overrides), _usable(static, own_overrides))
        if now == self.now:
            return False
        for name in sorted(now.configured.keys() - self.now.configured.keys()):
            definition = broker_definition(name)
            if definition is None or not definition.honoured:
                log.warning("%s is set, and has no effect here: %s", name, reason_of(name))
        if refusal := cleaner_refusal(Explicit(now.configured)):
            log.error("dynamic configs of the log cleaner have no effect together: %s", refusal)
        self.now = now
        for subscriber in self._subscribers:
            subscriber(now)
        return True


def _usable(static: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, text in overrides.items():
        definition = broker_definition(name)
        try:
            if definition is None or not definition.dynamic:
                raise InvalidConfig("it cannot be changed while a broker runs")
            definition.parse(text)
            check_key_store(static, name, text)
        except InvalidConfig as refused:
            # The value is not logged: an unknown config may be a secret.
            log.error("the dynamic config %s has no effect: %s; delete it or set it again", name, refused)
        else:
            found[name] = text
    return found
