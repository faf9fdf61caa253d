"""SCRAM credentials from passwords, and the first ones of a new cluster.

A cluster whose listeners accept only SCRAM needs a first user; otherwise nobody could log in to add another. The first
commit of the cluster has the user of each SCRAM `sasl.jaas.config` of the broker that creates it. Afterwards these
users are changed like all others (Kafka's `kafka-storage format --add-scram`).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.sasl import PasswordLogin
from broker.metadata.records import ScramCredential, ScramSecret
from broker.security.sasl.scram import ITERATIONS_MIN, SALT_BYTES, SECRET_BYTES, keys_of, salted_password
from seams.loop.workers import Lane, Workers
from seams.rng import Rng


def credential(login: PasswordLogin, salt: bytes, iterations: int = ITERATIONS_MIN) -> ScramCredential:
    """Takes milliseconds: not for a loop. `salt`: random, of 16 bytes or more."""
    keys = keys_of(login.mechanism, salted_password(login.mechanism, login.password, salt, iterations))
    return ScramCredential(login.username, login.mechanism, salt, keys.stored_key, keys.server_key, iterations)


async def first_records(
    logins: Sequence[PasswordLogin], workers: Workers, rng: Rng
) -> tuple[ScramSecret | ScramCredential, ...]:
    """Records of the cluster's secret, then of a credential for each login, which is made in a worker."""
    made = [await workers.run(credential, each, rng.random_bytes(SALT_BYTES), lane=Lane.LOGIN) for each in logins]
    return (ScramSecret(rng.random_bytes(SECRET_BYTES)), *made) if made else ()
