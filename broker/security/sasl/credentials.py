"""SCRAM credentials from passwords, and the first credentials of a new cluster.

A cluster whose listeners accept only SCRAM needs a first user; without one nobody could log in to add users. The broker
that creates the cluster adds the user of each SCRAM `sasl.jaas.config` in the first commit. Later these users are
changed like all others (Kafka's `kafka-storage format --add-scram`).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.network.sasl import PasswordLogin
from broker.metadata.records import ScramCredential, ScramSecret
from broker.security.sasl.scram import ITERATIONS_MIN, SALT_BYTES, SECRET_BYTES, keys_of, salted_password
from seams.loop.workers import Lane, Workers
from seams.rng import Rng


def credential(login: PasswordLogin, salt: bytes, iterations: int = ITERATIONS_MIN) -> ScramCredential:
    """The SCRAM credential of a password. Takes milliseconds, so it does not run on a loop. `salt`: 16 random bytes or
    more."""
    keys = keys_of(login.mechanism, salted_password(login.mechanism, login.password, salt, iterations))
    return ScramCredential(login.username, login.mechanism, salt, keys.stored_key, keys.server_key, iterations)


async def first_records(
    logins: Sequence[PasswordLogin], workers: Workers, rng: Rng
) -> tuple[ScramSecret | ScramCredential, ...]:
    """Records with the cluster's secret and a credential for each login. A worker makes the credentials."""
    made = [await workers.run(credential, each, rng.random_bytes(SALT_BYTES), lane=Lane.LOGIN) for each in logins]
    return (ScramSecret(rng.random_bytes(SECRET_BYTES)), *made) if made else ()
