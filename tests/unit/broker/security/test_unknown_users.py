"""What a stranger learns of users by SCRAM: a salt for every name, of a secret of the cluster that nobody is told."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest
from confluent_kafka.admin import UserScramCredentialUpsertion  # type: ignore[attr-defined]  # public in its docs

from broker.config.network.sasl import PasswordLogin
from broker.controller.decisions import credentials
from broker.controller.decisions.credentials import Upsertion
from broker.metadata.records import ScramCredential, ScramSecret
from broker.security.sasl import scram
from broker.security.sasl.credentials import first_records
from broker.security.sasl.scram_server import ScramServer
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import Life, Place
from tests.support.workers import InlineWorkers
from thermocline.cli.user import credentials as user_credentials

MECHANISM = "SCRAM-SHA-512"
SETTINGS = (
    "listeners=IN://127.0.0.1:0",
    "listener.security.protocol.map=IN:SASL_PLAINTEXT,BROKERS:PLAINTEXT",
    f"sasl.enabled.mechanisms={MECHANISM}",
)
ALICE = Upsertion("alice", 2, 4096, b"salt", b"salted password")


def salt(life: Life, user: str = "ghost") -> bytes:
    machine = life.broker._listening.logins._scram(MECHANISM)
    assert isinstance(machine, ScramServer)
    return scram.read_server_first(machine.evaluate(f"n,,n={user},r=abc".encode()).token).salt


def salt_by_cluster_id(life: Life) -> bytes:
    """As whoever knows the cluster's id could make it."""
    secret = sha256(b"thermocline scram decoys:" + life.context.metadata.cluster_id.encode()).digest()
    return ScramServer(MECHANISM, lambda *_: None, "", secret)._decoy("ghost").salt


async def test_salts_of_unknown_users_do_not_follow_from_what_users_are_told() -> None:
    """The cluster's id is in every answer to Metadata. The salts stay after a restart, as real ones do."""
    here = Place(*SETTINGS)
    life = await here.start()
    await life.context.controller.alter_credentials((), (ALICE,))
    first = salt(life)
    assert first == salt(life) != salt(life, "another") and len(first) == scram.SALT_BYTES
    assert first != salt_by_cluster_id(life)
    await life.stop()
    life = await here.start()
    assert salt(life) == first
    await life.stop()


def test_a_user_of_user_add_has_a_salt_like_those_of_unknown_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Salts are told to everybody, so their length must not tell users from unknown names."""
    sent: list[UserScramCredentialUpsertion] = []
    monkeypatch.setattr(user_credentials, "_alter", lambda _bootstrap, _user, change, _what: sent.append(change))
    for _ in range(2):
        user_credentials.upsert("b:1", "alice", MECHANISM, scram.ITERATIONS_MIN, "password")
    salts = {change.salt or b"" for change in sent}
    stranger = ScramServer(MECHANISM, lambda *_: None, "nonce", b"secret")._decoy("ghost")
    assert len(salts) == 2 and {len(each) for each in salts} == {len(stranger.salt)}


async def test_a_cluster_whose_users_are_older_gets_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next start of its controller, once."""
    here = Place(*SETTINGS)
    with monkeypatch.context() as before:
        before.setattr(credentials, "secret", lambda *_: ())
        life = await here.start()
        await life.context.controller.alter_credentials((), (ALICE,))
        assert salt(life) == salt_by_cluster_id(life)
        await life.stop()
    life = await here.start()
    async with asyncio.timeout(60):
        while not life.context.metadata.image.scram_secret:
            await asyncio.sleep(0.1)
    first = salt(life)
    assert first != salt_by_cluster_id(life)
    await life.stop()
    life = await here.start()
    assert salt(life) == first
    await life.stop()


async def test_the_first_user_of_a_new_cluster_brings_the_secret() -> None:
    """As `serve --secure` makes one. Without a user there is nothing to hide."""
    secret, alice = await first_records([PasswordLogin(MECHANISM, "alice", "x")], InlineWorkers(), SeededRng("x"))
    assert isinstance(secret, ScramSecret) and len(secret.secret) == scram.SECRET_BYTES
    assert isinstance(alice, ScramCredential)
    assert await first_records([], InlineWorkers(), SeededRng("x")) == ()
