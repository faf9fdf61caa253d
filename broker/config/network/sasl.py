"""SASL configuration of each listener: mechanisms, PLAIN users, limits, and the login between brokers.

Each mechanism of a listener has its own `listener.name.NAME.MECHANISM.sasl.jaas.config`, as in Kafka. No `repr` and no
error contains a secret. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.config.network.listeners import ListenerConfig
from broker.config.sources import Explicit
from broker.config.values import InvalidConfig
from broker.security_protocol import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM, SCRAM_SHA_256, SCRAM_SHA_512
from logformat.jaas import LoginModule, parse_jaas

UNSECURED_VALIDATOR: Final = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
_SECURED_VALIDATOR: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
LOGIN_MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_JAAS: Final = "sasl.jaas.config"
_ENABLED: Final = "sasl.enabled.mechanisms"
_HANDLER: Final = "sasl.server.callback.handler.class"
_REAUTH: Final = "connections.max.reauth.ms"
_JWKS: Final = "sasl.oauthbearer.jwks.endpoint.url"


class TokenRules(msgspec.Struct, frozen=True):
    """Validity rules of OAUTHBEARER tokens. `jwks_url` None: unsecured tokens (`alg` none), for tests only."""

    jwks_url: str | None
    audience: tuple[str, ...]  # empty: any
    issuer: str | None  # None: any
    scope_claim: str
    sub_claim: str
    clock_skew_s: int
    refresh_ms: int
    retry_ms: int
    retry_ms_max: int


@dataclass(frozen=True, slots=True)
class SaslListener:
    """SASL of one listener. `reauth_ms`: the length of a session, by mechanism; 0: the session does not end."""

    mechanisms: tuple[str, ...]
    token_bytes_max: int
    failure_delay_ms: int
    reauth_ms: Mapping[str, int]
    plain_users: Mapping[str, str] = field(repr=False)
    tokens: TokenRules | None  # rules of OAUTHBEARER


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """Credentials of this program as a client: a mechanism, a user, a password."""

    mechanism: str
    username: str
    password: str = field(repr=False)


class TokenLogin(msgspec.Struct, frozen=True):
    """Credentials of this program as an OAUTHBEARER client: the file with the token. It is read at each login."""

    token_file: str
    mechanism: str = OAUTHBEARER


Login = PasswordLogin | TokenLogin


def sasl_listeners(values: Explicit, listeners: Sequence[ListenerConfig]) -> dict[str, SaslListener]:
    """SASL configuration by name of the SASL listeners. Raises InvalidConfig."""
    if _JAAS in values.configured:
        raise InvalidConfig(
            f"{_JAAS} of a broker belongs to a listener and a mechanism: write "
            f"listener.name.NAME.plain.{_JAAS} or listener.name.NAME.scram-sha-512.{_JAAS}"
        )
    return {one.name: _listener(values, one.name) for one in listeners if one.protocol.uses_sasl}


def brokers_login(values: Explicit, listener: ListenerConfig) -> Login | None:
    """Login of this broker to other brokers, with `sasl.mechanism.inter.broker.protocol`; None if their listener does
    not use SASL. Raises InvalidConfig."""
    if not listener.protocol.uses_sasl:
        return None
    mechanism = values.text("sasl.mechanism.inter.broker.protocol")
    _check_mechanism("sasl.mechanism.inter.broker.protocol", mechanism)
    own = values.of_listener(listener.name)
    if mechanism not in own.texts(_ENABLED):
        raise InvalidConfig(
            f"sasl.mechanism.inter.broker.protocol={mechanism} is not among {_ENABLED} of listener {listener.name}, "
            "which brokers use among themselves"
        )
    name = jaas_name(listener.name, mechanism)
    module = _module(own, listener.name, mechanism)
    options = module.options if module else {}
    if mechanism == OAUTHBEARER:
        if not options.get("tokenFile"):
            raise InvalidConfig(f'{name} has no tokenFile="…": name the file with the brokers\' login token')
        return TokenLogin(options["tokenFile"])
    if not options.get("username") or not options.get("password"):
        raise InvalidConfig(f'{name} has no username="…" password="…", which brokers need to log in to one another')
    return PasswordLogin(mechanism, options["username"], options["password"])


def first_users(values: Explicit, listeners: Sequence[ListenerConfig]) -> tuple[PasswordLogin, ...]:
    """First users of a new cluster: the users in the SCRAM login modules of all listeners."""
    found: dict[tuple[str, str], PasswordLogin] = {}
    for listener in listeners:
        own = values.of_listener(listener.name)
        for mechanism in SCRAM:
            module = _module(own, listener.name, mechanism) if listener.protocol.uses_sasl else None
            if module and (user := module.options.get("username")) and (password := module.options.get("password")):
                login = PasswordLogin(mechanism, user, password)
                if found.setdefault((user, mechanism), login) != login:
                    raise InvalidConfig(f"{jaas_name(listener.name, mechanism)} gives {user} a second password")
    return tuple(found.values())


def jaas_name(listener: str, mechanism: str) -> str:
    return f"listener.name.{listener.lower()}.{mechanism.lower()}.{_JAAS}"


def _listener(values: Explicit, name: str) -> SaslListener:
    own = values.of_listener(name)
    mechanisms = own.texts(_ENABLED)
    if not mechanisms:
        raise InvalidConfig(f"{_ENABLED} of listener {name} is empty: no client could log in")
    for mechanism in mechanisms:
        _check_mechanism(f"{_ENABLED} of listener {name}", mechanism)
    return SaslListener(
        mechanisms=tuple(dict.fromkeys(mechanisms)),
        token_bytes_max=own.number("sasl.server.max.receive.size"),
        failure_delay_ms=own.number("connection.failed.authentication.delay.ms"),
        reauth_ms={each: _of_mechanism(own, each).number(_REAUTH) for each in mechanisms},
        plain_users=_plain_users(own, name) if PLAIN in mechanisms else {},
        tokens=_token_rules(own, name) if OAUTHBEARER in mechanisms else None,
    )


def _check_mechanism(config: str, mechanism: str) -> None:
    if mechanism not in MECHANISMS:
        why = "Kerberos is not served; " if mechanism == "GSSAPI" else ""
        raise InvalidConfig(f"{config} names {mechanism or 'none'}: {why}served are {', '.join(MECHANISMS)}")


def _of_mechanism(own: Explicit, mechanism: str) -> Explicit:
    """The values of a listener for one of its mechanisms."""
    prefix = f"{mechanism.lower()}."
    found = {name[len(prefix) :]: text for name, text in own.configured.items() if name.lower().startswith(prefix)}
    return Explicit({**own.configured, **found})


def _module(own: Explicit, listener: str, mechanism: str) -> LoginModule | None:
    text = own.configured.get(f"{mechanism.lower()}.{_JAAS}")
    if text is None:
        return None
    name = jaas_name(listener, mechanism)
    module = parse_jaas(text, name)
    if module.class_name != LOGIN_MODULES[mechanism]:
        raise InvalidConfig(
            f"{name} names another login module than {LOGIN_MODULES[mechanism]}: no Java class is run here"
        )
    return module


def _plain_users(own: Explicit, listener: str) -> dict[str, str]:
    module = _module(own, listener, PLAIN)
    users = module.users if module else {}
    if not users:
        raise InvalidConfig(
            f'{jaas_name(listener, PLAIN)} has no user_NAME="password": no client could log in by PLAIN'
        )
    return users


def _token_rules(own: Explicit, listener: str) -> TokenRules:
    own = _of_mechanism(own, OAUTHBEARER)
    handler, url = own.text(_HANDLER), own.text(_JWKS) or None
    if handler not in ("", UNSECURED_VALIDATOR, _SECURED_VALIDATOR):
        raise InvalidConfig(f"{_HANDLER} of listener {listener}: no Java class is run here; leave it out")
    is_unsecured = handler == UNSECURED_VALIDATOR
    if is_unsecured == (url is not None):
        raise InvalidConfig(
            f"listener {listener} serves OAUTHBEARER: set {_JWKS} to the URL (https:// or file://) of the keys that "
            f"sign its tokens; {_HANDLER}={UNSECURED_VALIDATOR} instead accepts unsigned tokens, for tests"
        )
    if url is not None and not url.startswith(("https://", "file:///")):
        raise InvalidConfig(f"{_JWKS} of listener {listener} must begin with https:// or file:///")
    return TokenRules(
        jwks_url=url,
        audience=own.texts("sasl.oauthbearer.expected.audience"),
        issuer=own.text("sasl.oauthbearer.expected.issuer") or None,
        scope_claim=own.text("sasl.oauthbearer.scope.claim.name"),
        sub_claim=own.text("sasl.oauthbearer.sub.claim.name"),
        clock_skew_s=own.number("sasl.oauthbearer.clock.skew.seconds"),
        refresh_ms=own.number("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        retry_ms=own.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        retry_ms_max=own.number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
    )
