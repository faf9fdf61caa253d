"""SASL as configured: JAAS texts, what each listener needs, what is refused, and that no secret is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.api.describe import describe_broker
from broker.config.broker_config import BrokerConfig
from broker.config.network.sasl import UNSECURED_VALIDATOR, PasswordLogin, TokenLogin
from broker.config.resolve import resolve
from broker.config.sources import ConfigError
from broker.config.values import InvalidConfig
from logformat.errors import InvalidRequest
from logformat.jaas import parse_jaas

SECRET = "hunter2-of-this-test"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
IN = "listeners=IN://127.0.0.1:0\nlistener.security.protocol.map=IN:SASL_PLAINTEXT\n"
TWO = (
    "listeners=OUT://127.0.0.1:0,IN://127.0.0.1:0\ninter.broker.listener.name=IN\n"
    "listener.security.protocol.map=OUT:PLAINTEXT,IN:SASL_PLAINTEXT\n"
)


def config(text: str, *sets: str, **env: str) -> BrokerConfig:
    return resolve({"log.dirs": "/data"}, sets, env, text)


def test_a_listener_with_every_mechanism() -> None:
    """Each mechanism by its own jaas config; limits of one mechanism over those of the listener."""
    found = config(
        IN
        + "sasl.enabled.mechanisms=GSSAPI\nlistener.name.in.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER\n"
        f'listener.name.in.plain.sasl.jaas.config={PLAIN} required user_alice="a \\\\"b\\\\"" user_bob=plain;\n'
        "listener.name.in.connections.max.reauth.ms=5000\n"
        "listener.name.in.plain.connections.max.reauth.ms=7000\n"
        "listener.name.in.oauthbearer.sasl.oauthbearer.jwks.endpoint.url=file:///keys.json\n"
        "sasl.oauthbearer.expected.audience=a,b\n"
    ).sasl["IN"]
    assert found.mechanisms == ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
    assert found.plain_users == {"alice": 'a "b"', "bob": "plain"}
    assert found.reauth_ms == {"PLAIN": 7000, "SCRAM-SHA-256": 5000, "OAUTHBEARER": 5000}
    assert found.tokens is not None and found.tokens.audience == ("a", "b")
    assert found.tokens.jwks_url == "file:///keys.json"
    assert found.failure_delay_ms == 100 and found.token_bytes_max == 524288


def test_a_brokers_listener_without_a_login_beside_logins_is_known() -> None:
    """The start warns of it: every user of the machine skips the login there."""
    jaas = (
        "sasl.enabled.mechanisms=PLAIN\nsasl.mechanism.inter.broker.protocol=PLAIN\n"
        f"listener.name.in.plain.sasl.jaas.config={PLAIN} required user_a=b username=a password=b;\n"
    )
    both = (
        "listeners=IN://127.0.0.1:0,OUT://127.0.0.1:0\nlistener.security.protocol.map=OUT:PLAINTEXT,IN:SASL_PLAINTEXT\n"
    )
    assert config(IN + jaas).skips_login
    assert not config(both + jaas).skips_login, "clients need no login either"
    assert not config(TWO + jaas).skips_login, "brokers have no additional listener"
    assert not config("").skips_login


def test_brokers_log_in_by_their_listeners_jaas_config() -> None:
    """With its user a new cluster begins; a plaintext listener needs no login."""
    text = TWO + (
        "sasl.enabled.mechanisms=SCRAM-SHA-512\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
        f'listener.name.in.scram-sha-512.sasl.jaas.config={SCRAM} required username="b" password="{SECRET}";\n'
    )
    found = config(text)
    assert found.brokers_login == PasswordLogin("SCRAM-SHA-512", "b", SECRET)
    assert found.first_users == (PasswordLogin("SCRAM-SHA-512", "b", SECRET),)
    assert found.sasl.keys() == {"IN"}
    assert config("").brokers_login is None and config("").first_users == ()
    bearer = config(
        TWO + "sasl.enabled.mechanisms=OAUTHBEARER\nsasl.mechanism.inter.broker.protocol=OAUTHBEARER\n"
        f"sasl.server.callback.handler.class={UNSECURED_VALIDATOR}\n"
        f'listener.name.in.oauthbearer.sasl.jaas.config={BEARER} required tokenFile="/run/token";\n'
    )
    assert bearer.brokers_login == TokenLogin("/run/token")
    tokens = bearer.sasl["IN"].tokens
    assert tokens is not None and tokens.jwks_url is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (IN, "GSSAPI: Kerberos is not served"),
        (IN + "sasl.enabled.mechanisms=DIGEST-MD5", "DIGEST-MD5: served are PLAIN"),
        (IN + "sasl.enabled.mechanisms=", "is empty"),
        (IN + "sasl.enabled.mechanisms=PLAIN", "has no user_NAME"),
        (IN + f'sasl.enabled.mechanisms=SCRAM-SHA-256\nsasl.jaas.config={SCRAM} required a="{SECRET}";', "belongs to"),
        (IN + "sasl.enabled.mechanisms=OAUTHBEARER", "to the URL (https:// or file://) of the keys that sign"),
        (
            IN + "sasl.enabled.mechanisms=OAUTHBEARER\nsasl.oauthbearer.jwks.endpoint.url=http://x/keys",
            "must begin with https://",
        ),
        (
            IN + "sasl.enabled.mechanisms=OAUTHBEARER\nsasl.oauthbearer.jwks.endpoint.url=https://x/keys\n"
            f"sasl.server.callback.handler.class={UNSECURED_VALIDATOR}",
            "for tests",
        ),
        (
            IN + "sasl.enabled.mechanisms=OAUTHBEARER\nsasl.server.callback.handler.class=com.example.Mine",
            "no Java class",
        ),
        (TWO + "sasl.enabled.mechanisms=SCRAM-SHA-256", "inter.broker.protocol names GSSAPI"),
        (
            TWO + "sasl.enabled.mechanisms=SCRAM-SHA-256\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
            "is not among",
        ),
        (
            TWO + "sasl.enabled.mechanisms=SCRAM-SHA-256\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-256",
            'has no username="…" password="…"',
        ),
        (
            IN + "sasl.enabled.mechanisms=PLAIN\n"
            f'listener.name.in.plain.sasl.jaas.config={SCRAM} required user_a="{SECRET}";',
            "another login module",
        ),
    ],
)
def test_what_is_refused_says_why_and_shows_no_secret(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        config(text)
    assert says in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        f"{PLAIN};",
        f"{PLAIN} required",
        f'{PLAIN} required user_a="{SECRET}"',  # no closing ;
        f'{PLAIN} required user_a="{SECRET};',  # no closing quote
        f'{PLAIN} sometimes user_a="{SECRET}";',
        f'{PLAIN} required user_a "{SECRET}";',
        f'{PLAIN} required user_a="{SECRET}" user_a="{SECRET}";',
        f'{PLAIN} required user_a="{SECRET}"; {PLAIN} required user_b="{SECRET}";',
        f'"{PLAIN}" required user_a="{SECRET}";',
        f"{PLAIN} required {SECRET};",
        f"{PLAIN} required a={SECRET} =;",
    ],
)
def test_a_jaas_text_that_cannot_be_read_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_jaas(text, "x.jaas")
    assert "x.jaas" in str(refused.value) and SECRET not in str(refused.value)


def test_a_jaas_text_may_have_comments_quotes_and_lines() -> None:
    module = parse_jaas(f"{PLAIN} /* one */ REQUIRED\n  user_a='it''s' // two\n;".replace("''", "\\'"), "x")
    assert module.users == {"a": "it's"} and module.class_name == PLAIN
    assert SECRET not in repr(parse_jaas(f'{PLAIN} required a="{SECRET}";', "x"))


@given(st.text(max_size=80) | st.text('"\\=; ax/*\n', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_jaas(text, "x")
    except InvalidRequest:
        return


def test_a_secret_comes_from_a_file_or_the_environment_only() -> None:
    """S9: `--set` would show it to every user of the machine; the refusal does not repeat it."""
    name = "listener.name.in.plain.sasl.jaas.config"
    jaas = f'{PLAIN} required user_alice="{SECRET}";'
    with pytest.raises(ConfigError) as refused:
        config(IN + "sasl.enabled.mechanisms=PLAIN", f"{name}={jaas}")
    assert SECRET not in str(refused.value)
    variable = "THERMOCLINE_LISTENER_NAME_IN_PLAIN_SASL_JAAS_CONFIG"
    assert variable in str(refused.value)
    found = config(IN + "sasl.enabled.mechanisms=PLAIN", **{variable: jaas})
    assert found.sasl["IN"].plain_users == {"alice": SECRET}
    scram = "THERMOCLINE_LISTENER_NAME_MY_IN_SCRAM_SHA_256_SASL_JAAS_CONFIG"
    configured = config("", **{scram: "x", "THERMOCLINE_LISTENER_NAME_IN_WHAT": "y"}).configured
    assert configured == {"listener.name.my_in.scram-sha-256.sasl.jaas.config": "x", "log.dirs": "/data"}


def test_no_secret_is_described_or_printed() -> None:
    """DescribeConfigs, repr of the whole configuration but for the texts it was made of."""
    found = config(
        IN + "sasl.enabled.mechanisms=PLAIN\n"
        f'listener.name.in.plain.sasl.jaas.config={PLAIN} required user_alice="{SECRET}";\n'
    )
    assert SECRET not in repr(describe_broker(found))
    assert SECRET not in repr((found.sasl, found.brokers_login, found.first_users))
