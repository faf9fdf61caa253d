"""SASL of one broker: the logins of its listeners, with the mechanisms that its configuration enables.

Listeners are bound before the cluster's image is known and accept after it: `serve` gives the image before the first
login. SCRAM credentials are looked up in the newest image at each login, so a deleted user cannot log in any more; its
connections last until their sessions end.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import Protocol

from broker.config.sasl import OAUTHBEARER, PLAIN, SaslListener
from broker.metadata.image import ClusterImage
from broker.metadata.records import ScramCredential
from broker.net.dispatch import Dispatcher
from broker.security.sasl.limits import LoginLimits
from broker.security.sasl.login import MakeMechanism
from broker.security.sasl.login_dispatcher import ListenerLogins
from broker.security.sasl.mechanism import Mechanism, NotValid, Verdict
from broker.security.sasl.oauthbearer import OAuthBearerServer
from broker.security.sasl.plain import PlainServer, password_digests
from broker.security.sasl.scram_server import ScramServer
from seams.loop.tasks import Tasks
from seams.world import World


class Metadata(Protocol):
    """Of `broker.following.metadata_cache.MetadataCache`."""

    cluster_id: str
    image: ClusterImage


class Logins:
    """Of one broker. `broker` answers the requests of those who are logged in."""

    def __init__(self, configured: Mapping[str, SaslListener], broker: Dispatcher, world: World, tasks: Tasks) -> None:
        self._world = world
        self._metadata: Metadata | None = None
        self._secret = b""
        limits = LoginLimits()
        self._listeners = {
            name: ListenerLogins(
                name, config, broker, self._mechanisms(config), self._verify, limits, world.clock, tasks
            )
            for name, config in configured.items()
        }

    def of_listener(self, name: str) -> ListenerLogins | None:
        """None: the listener does not speak SASL."""
        return self._listeners.get(name)

    def serve(self, metadata: Metadata) -> None:
        """Use `metadata` from now on; called before the first connection is accepted."""
        self._metadata = metadata
        # The same on every broker and after every start; who has not logged in cannot know the cluster's id.
        self._secret = sha256(b"thermocline scram decoys:" + metadata.cluster_id.encode()).digest()

    def _mechanisms(self, config: SaslListener) -> dict[str, MakeMechanism]:
        digests = password_digests(config.plain_users)
        found: dict[str, MakeMechanism] = {}
        for mechanism in config.mechanisms:
            if mechanism == PLAIN:
                found[mechanism] = partial(PlainServer, digests)
            elif mechanism == OAUTHBEARER:
                found[mechanism] = OAuthBearerServer
            else:
                found[mechanism] = partial(self._scram, mechanism)
        return found

    def _scram(self, mechanism: str) -> Mechanism:
        return ScramServer(mechanism, self._credential, self._nonce(), self._secret)

    def _nonce(self) -> str:
        return f"{self._world.rng.uuid().hex}{self._world.rng.uuid().hex}"

    def _credential(self, user: str, mechanism: str) -> ScramCredential | None:
        assert self._metadata is not None
        return self._metadata.image.scram.get(user, {}).get(mechanism)

    async def _verify(self, token: str) -> Verdict:
        return NotValid("no key is known")
