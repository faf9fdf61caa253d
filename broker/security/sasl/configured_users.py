"""Users of PLAIN from the broker's configuration, which a reload reads again. Blocking.

A reload applies no other config; other changes need a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.security.sasl.logins import Logins


class ConfiguredUsers:
    """The users of one broker's configuration. `reread` reads the configuration file again and returns its content; it
    raises InvalidConfig."""

    where: Final = "the users of PLAIN"

    def __init__(self, reread: Callable[[], BrokerConfig], logins: Logins) -> None:
        self._reread = reread
        self._logins = logins

    @property
    def says(self) -> str:
        return f"{self._logins.plain_users_count} in use"

    def reload(self) -> bool:
        """Read the users again. Returns whether they changed. If this raises InvalidConfig, the old users stay."""
        return self._logins.use_plain_users(self._reread().sasl)
