"""SASL of one broker: the logins of its listeners, with the mechanisms that its configuration enables.

Listeners are bound before the cluster's image is known. `serve` sets the image before they accept connections. SCRAM
credentials are looked up in the newest image at each login, so a deleted user cannot log in any more. The user's open
connections last until their sessions end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

from broker.config.broker_config import BrokerConfig
from broker.config.network.sasl import SaslListener
from broker.metadata.image import ClusterImage
from broker.metadata.records import ScramCredential
from broker.net.dispatch import Dispatcher
from broker.security.audit import Audit
from broker.security.sasl.limits import LoginLimits
from broker.security.sasl.login import MakeMechanism
from broker.security.sasl.login_dispatcher import ListenerLogins, VerifyToken
from broker.security.sasl.mechanism import Mechanism, NotValid, TokenVerdict
from broker.security.sasl.oauthbearer import OAuthBearerServer
from broker.security.sasl.plain import PlainServer, password_digests
from broker.security.sasl.scram_server import ScramServer
from broker.security_protocol import OAUTHBEARER, PLAIN
from seams.loop.tasks import Tasks
from seams.world import World

if TYPE_CHECKING:
    from broker.security.sasl.jwks import TokenVerifier


class Metadata(Protocol):
    """The part of `broker.following.metadata_cache.MetadataCache` that logins need."""

    cluster_id: str
    image: ClusterImage


class Logins:
    """The logins of one broker. `broker` answers requests of peers that are logged in. The `brokers_listener` has
    separate limits, so that a login storm elsewhere does not block brokers."""

    def __init__(
        self,
        configured: Mapping[str, SaslListener],
        broker: Dispatcher,
        world: World,
        tasks: Tasks,
        audit: Audit,
        brokers_listener: str,
    ) -> None:
        self._world = world
        self._metadata: Metadata | None = None
        self._plain_users = {name: password_digests(config.plain_users) for name, config in configured.items()}
        limits = LoginLimits()
        self._verifiers: dict[str, TokenVerifier] = {}
        self._listeners: dict[str, ListenerLogins] = {}
        for name, config in configured.items():
            verify: VerifyToken = _no_tokens
            if config.tokens is not None:
                # Imported here, because its libraries cost 40 ms and 10 MiB, and most brokers do not need them.
                from broker.security.sasl.jwks import TokenVerifier

                self._verifiers[name] = verifier = TokenVerifier(config.tokens, world)
                verify = verifier.verify
            self._listeners[name] = ListenerLogins(
                name,
                config,
                broker,
                self._mechanisms(name, config),
                verify,
                LoginLimits() if name == brokers_listener else limits,
                world.clock,
                tasks,
                audit,
            )

    def of_listener(self, name: str) -> ListenerLogins | None:
        """The logins of a listener; None if the listener does not speak SASL."""
        return self._listeners.get(name)

    def serve(self, metadata: Metadata) -> None:
        """Use `metadata` from now on. This is called before the first connection is accepted."""
        self._metadata = metadata

    @property
    def services(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Background services by name, for the caller to start. They keep the keys of tokens current."""
        return {f"keys of {name}": verifier.keep for name, verifier in self._verifiers.items()}

    @property
    def plain_users_count(self) -> int:
        """Number of PLAIN users on all listeners together."""
        return len({user for users in self._plain_users.values() for user in users})

    @property
    def takes_plain(self) -> bool:
        return any(self._plain_users.values())

    def use_plain_users(self, configured: Mapping[str, SaslListener]) -> bool:
        """Let the users of `configured` log in by PLAIN from now on. Returns whether the users changed. May be called
        from any thread. The listeners and their mechanisms do not change.
        """
        users = {
            name: password_digests(configured[name].plain_users) if name in configured else before
            for name, before in self._plain_users.items()
        }
        changed, self._plain_users = users != self._plain_users, users
        return changed

    def _mechanisms(self, name: str, config: SaslListener) -> dict[str, MakeMechanism]:
        found: dict[str, MakeMechanism] = {}
        for mechanism in config.mechanisms:
            if mechanism == PLAIN:
                found[mechanism] = partial(self._plain, name)
            elif mechanism == OAUTHBEARER:
                found[mechanism] = OAuthBearerServer
            else:
                found[mechanism] = partial(self._scram, mechanism)
        return found

    def _plain(self, listener: str) -> Mechanism:
        return PlainServer(lambda user: self._plain_users[listener].get(user))

    def _scram(self, mechanism: str) -> Mechanism:
        return ScramServer(mechanism, self._credential, self._nonce(), self._secret())

    def _secret(self) -> bytes:
        """The secret for the salts of unknown users, the same on every broker and after every start. A cluster that was
        created before this secret existed uses its cluster id, until a user is added or the controller starts again.
        """
        assert self._metadata is not None
        known = self._metadata.image.scram_secret
        return known or sha256(b"thermocline scram decoys:" + self._metadata.cluster_id.encode()).digest()

    def _nonce(self) -> str:
        return f"{self._world.rng.uuid().hex}{self._world.rng.uuid().hex}"

    def _credential(self, user: str, mechanism: str) -> ScramCredential | None:
        assert self._metadata is not None
        return self._metadata.image.scram.get(user, {}).get(mechanism)


async def _no_tokens(token: str) -> TokenVerdict:
    return NotValid("no listener takes tokens")


class ConfiguredUsers:
    """Users of PLAIN from the broker's configuration, which a reload reads again. Blocking. `reread` reads the
    configuration file again and returns its content; it raises InvalidConfig. A reload applies no other config; other
    changes need a restart."""

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
