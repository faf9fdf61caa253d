"""Check of a listener's new key store while the broker runs. Pure.

The new key store must be a file in the directory of the listener's first key store. Otherwise a user who may alter
configs could name a file that clients write, such as a log with a certificate that a client produced. The listener
would present this certificate, and no client would connect. Kafka accepts every path.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

from broker.config.sources import Explicit
from broker.config.values import InvalidConfig

_LOCATION: Final = "ssl.keystore.location"
_OF_LISTENER: Final = re.compile(r"listener\.name\.([^.]+)\.ssl\.keystore\.location")


def check_key_store(static: Mapping[str, str], name: str, text: str) -> None:
    """Check the new value of a key store. `static`: the configs of the start. Raises InvalidConfig if the config `name`
    of a key store may not get the value `text`.
    """
    found = _OF_LISTENER.fullmatch(name)
    if found is None:
        return
    first = Explicit(static).of_listener(found[1]).text(_LOCATION)
    if not first:
        raise InvalidConfig(f"{name}: listener {found[1]} has no {_LOCATION} at its start; set one there")
    directory = posixpath.dirname(posixpath.normpath(first))
    if posixpath.dirname(posixpath.normpath(text.strip())) != directory:
        raise InvalidConfig(
            f"{name}: a running broker reads key stores only from the directory of its first key store, "
            f"{directory or 'its working directory'}; put the new key store there, or restart the broker with another "
            "path"
        )
