"""SCRAM credentials as the controller decides them: Kafka's refusals, one outcome a user, and what is kept."""

from __future__ import annotations

from broker.controller.decisions.credentials import Deletion, Outcome, Upsertion, alter
from broker.error_codes import ErrorCode
from broker.metadata.cluster_content import IMAGE_BYTES_MAX
from broker.metadata.image import ClusterImage
from broker.metadata.records import ScramCredential, ScramSecret
from broker.security.sasl.scram import keys_of, salted_password

SALTED = salted_password("SCRAM-SHA-256", "pencil", b"salt", 4096)
SECRET = b"32 bytes of chance, or some more"
ALICE = Upsertion("alice", 1, 4096, b"salt", SALTED)


def with_alice() -> ClusterImage:
    return ClusterImage().with_records(alter(ClusterImage(), (), (ALICE,), 0, SECRET).records)


def test_a_credential_is_set_and_deleted() -> None:
    """What is kept is the keys, not the salted password, with which one could log in."""
    decision = alter(ClusterImage(), (), (ALICE,), 0, SECRET)
    assert decision.answer == (Outcome("alice"),)
    _, record = decision.records
    keys = keys_of("SCRAM-SHA-256", SALTED)
    assert record == ScramCredential("alice", "SCRAM-SHA-256", b"salt", keys.stored_key, keys.server_key, 4096)
    assert SALTED not in (record.stored_key, record.server_key)
    gone = alter(with_alice(), (Deletion("alice", 1),), (), 0, SECRET)
    assert gone.answer == (Outcome("alice"),)
    assert with_alice().with_records(gone.records).scram == {}


def test_each_user_has_an_outcome_in_kafkas_words() -> None:
    """Refused ones do not keep the others from being changed."""
    changes = (
        Upsertion("few", 1, 4095, b"salt", SALTED),
        Upsertion("many", 2, 16385, b"salt", SALTED),
        Upsertion("", 1, 4096, b"salt", SALTED),
        Upsertion("what", 3, 4096, b"salt", SALTED),
        Upsertion("bare", 1, 4096, b"", SALTED),
        ALICE,
    )
    decision = alter(ClusterImage(), (Deletion("nobody", 2), Deletion("some", 9)), changes, 0, SECRET)
    assert [(one.user, one.error, one.message) for one in decision.answer[:-1]] == [
        ("alice", ErrorCode.NONE, None),
        ("nobody", ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
        ("some", ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ("few", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ("many", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        ("", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ("what", ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
    ]
    assert decision.answer[-1].error is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert len(decision.records) == 2, "the secret, and alice"


def test_the_first_user_brings_a_secret_that_stays() -> None:
    """Salts of unknown users are made of it: a cluster's id would tell whoever logged in which users exist."""
    (first, _) = alter(ClusterImage(), (), (ALICE,), 0, SECRET).records
    assert first == ScramSecret(SECRET) and SECRET.decode() not in repr(first)
    later = alter(with_alice(), (), (ALICE._replace(user="bob"),), 0, b"another")
    assert [type(record) for record in later.records] == [ScramCredential]
    assert with_alice().with_records([ScramSecret(b"of a commit that was made twice")]).scram_secret == SECRET
    assert alter(ClusterImage(), (Deletion("alice", 1),), (), 0, SECRET).records == ()


def test_a_user_named_twice_is_not_changed() -> None:
    """Whichever the mechanisms, as Kafka; told once."""
    twice = alter(with_alice(), (Deletion("alice", 1),), (Upsertion("alice", 2, 4096, b"salt", SALTED),), 0, SECRET)
    assert twice.records == ()
    assert [(one.user, one.error) for one in twice.answer] == [("alice", ErrorCode.DUPLICATE_RESOURCE)]


def test_a_full_image_refuses_more_users_but_deletes() -> None:
    """As for topics."""
    deleted = alter(with_alice(), (Deletion("alice", 1),), (), IMAGE_BYTES_MAX + 1, SECRET)
    assert deleted.answer == (Outcome("alice"),)
    try:
        alter(ClusterImage(), (), (ALICE,), IMAGE_BYTES_MAX + 1, SECRET)
    except Exception as refused:  # noqa: BLE001 - its kind is asserted
        assert "metadata takes" in str(refused)
    else:
        raise AssertionError("a full image took a user")


def test_a_change_does_not_print_the_salted_password() -> None:
    assert SALTED.hex() not in repr(ALICE) and repr(SALTED) not in repr(ALICE)
