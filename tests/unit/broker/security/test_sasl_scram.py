"""SCRAM: the RFC's own conversation, what a server refuses, and that an unknown user looks like a wrong password."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.network.sasl import PasswordLogin
from broker.metadata.records import ScramCredential
from broker.security.sasl import scram
from broker.security.sasl.client_login import ClientLogin, LoginFailed
from broker.security.sasl.credentials import credential
from broker.security.sasl.mechanism import Authenticated, Challenge, LoginRefused
from broker.security.sasl.scram_server import ScramServer
from broker.security_protocol import SCRAM, SCRAM_SHA_256, SCRAM_SHA_512

SECRET = b"of this cluster"


def server(*known: ScramCredential, mechanism: str = SCRAM_SHA_256, nonce: str = "serverside") -> ScramServer:
    def find(user: str, wanted: str) -> ScramCredential | None:
        return next((one for one in known if (one.user, one.mechanism) == (user, wanted)), None)

    return ScramServer(mechanism, find, nonce, SECRET)


def user(name: str = "alice", password: str = "pencil", mechanism: str = SCRAM_SHA_256) -> ScramCredential:
    return credential(PasswordLogin(mechanism, name, password), b"a salt of 16 bytes")


def converse(machine: ScramServer, client: ClientLogin) -> Authenticated:
    token: bytes | None = client.first_token()
    while token is not None:
        step = machine.evaluate(token)
        token = client.next_token(step.token)
    assert isinstance(step, Authenticated)
    return step


def test_the_conversation_of_rfc_7677() -> None:
    """Section 3, byte by byte, from both sides."""
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = credential(PasswordLogin(SCRAM_SHA_256, "user", "pencil"), salt)
    machine = server(known, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = ClientLogin(PasswordLogin(SCRAM_SHA_256, "user", "pencil"), "rOprNGfwEbeRWgbNEkqO")
    assert client.first_token() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    step = machine.evaluate(client.first_token())
    assert step == Challenge(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    final = client.next_token(step.token)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    done = machine.evaluate(final)
    assert done == Authenticated("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert client.next_token(done.token) is None


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), st.sampled_from(SCRAM))
def test_any_name_and_password_log_in(name: str, password: str, mechanism: str) -> None:
    """Commas, equal signs and other alphabets in names; the name comes out as it went in. NUL is no name's."""
    if "\0" in name:
        return
    known = user(name, password, mechanism)
    login = PasswordLogin(mechanism, name, password)
    assert converse(server(known, mechanism=mechanism), ClientLogin(login, "n0nce")).name == name


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_wrong_password_is_refused_at_the_end(mechanism: str) -> None:
    """The server refuses the proof, and says nothing but the mechanism."""
    client = ClientLogin(PasswordLogin(mechanism, "alice", "wrong"), "n0nce")
    with pytest.raises(LoginRefused) as refused:
        converse(server(user(mechanism=mechanism), mechanism=mechanism), client)
    assert refused.value.says is None and refused.value.user == "alice"


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    """A client does not believe an impostor who lets everybody in."""
    client = ClientLogin(PasswordLogin(SCRAM_SHA_256, "alice", "pencil"), "n0nce")
    step = server(user(password="another")).evaluate(client.first_token())
    client.next_token(step.token)
    with pytest.raises(LoginFailed, match="did not prove that it knows the password"):
        client.next_token(b"v=" + b"A" * 43 + b"=")


def calls_of(run: Callable[[], object]) -> list[str]:
    """The names of the hashing functions that `run` calls, in order."""
    called: list[str] = []

    def counted(name: str) -> Callable[..., object]:
        real = getattr(scram, name)

        def call(*arguments: object) -> object:
            called.append(name)
            return real(*arguments)

        return call

    names = ("is_proof", "server_signature", "_hmac", "_hash", "_xor")
    with patch.multiple(scram, **{name: counted(name) for name in names}):
        run()
    return called


def test_an_unknown_user_costs_and_shows_what_a_wrong_password_does() -> None:
    """S4: the same messages in number, form and length, the same hashes, and the same salt each time."""

    def attempt(name: str, *known: ScramCredential) -> tuple[int, str]:
        machine = server(*known)
        client = ClientLogin(PasswordLogin(SCRAM_SHA_256, name, "wrong"), "n0nce")
        step = machine.evaluate(client.first_token())
        final = client.next_token(step.token)
        assert final is not None
        with pytest.raises(LoginRefused) as refused:
            machine.evaluate(final)
        return len(step.token), f"{refused.value.says} {refused.value}"

    known = credential(PasswordLogin(SCRAM_SHA_256, "alice", "pencil"), b"20 bytes of real salt"[:20])
    assert attempt("alice", known) == attempt("alixe", known)
    assert calls_of(lambda: attempt("alice", known)) == calls_of(lambda: attempt("alixe", known))
    first = ClientLogin(PasswordLogin(SCRAM_SHA_256, "alixe", "x"), "n0nce").first_token()
    assert server().evaluate(first) == server().evaluate(first)
    other = ScramServer(SCRAM_SHA_256, lambda *_: None, "serverside", b"of another cluster")
    assert server().evaluate(first) != other.evaluate(first)


def test_nobody_logs_in_as_an_unknown_user() -> None:
    """Not even with a proof made of the stand-in's own keys."""
    machine = server()
    step = machine.evaluate(b"n,,n=ghost,r=abc")
    stand_in = machine._decoy("ghost")
    without = f"c=biws,r={scram.read_server_first(step.token).nonce}"
    message = b"n=ghost,r=abc," + step.token + b"," + without.encode()
    # Whoever knew the stand-in's stored key had to invert a hash; here it is simply taken as right.
    with patch.object(scram, "is_proof", lambda *_: True), pytest.raises(LoginRefused):
        machine.evaluate(without.encode() + b",p=" + b"A" * 43 + b"=")
    assert stand_in.stored_key and message


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"y,,n=alice,r=abc",  # a channel binding
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,m=1,n=alice,r=abc",  # an extension that has to be understood
        b"n,,n=al=ice,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a\x07c",
        b"n,b=x,n=alice,r=abc",
        b"n,,n=alice\xff,r=abc",
        b"n,,n=alice,r=" + b"a" * 9000,
    ],
)
def test_first_messages_that_are_refused(first: bytes) -> None:
    with pytest.raises(LoginRefused):
        server(user()).evaluate(first)


def test_another_authorization_id_is_refused() -> None:
    """Kafka's words; the same one is fine."""
    with pytest.raises(LoginRefused, match="different from username"):
        server(user()).evaluate(b"n,a=bob,n=alice,r=abc")
    assert isinstance(server(user()).evaluate(b"n,a=alice,n=alice,r=abc"), Challenge)


@pytest.mark.parametrize("left", [(), (user(password="another"),)], ids=["deleted", "another password"])
def test_the_credential_of_the_first_message_does_not_outlive_the_user(left: tuple[ScramCredential, ...]) -> None:
    """Regression: a client that sent its first message in time was logged in by the old password, up to the idle time
    of its connection later, and renewed its session with it."""
    known = [user()]
    machine = ScramServer(
        SCRAM_SHA_256, lambda name, _: next((one for one in known if one.user == name), None), "serverside", SECRET
    )
    client = ClientLogin(PasswordLogin(SCRAM_SHA_256, "alice", "pencil"), "n0nce")
    final = client.next_token(machine.evaluate(client.first_token()).token)
    assert final is not None
    known[:] = left
    with pytest.raises(LoginRefused):
        machine.evaluate(final)


def test_a_final_message_belongs_to_its_first() -> None:
    """Another nonce, and another channel binding than it began with, are refused, though the proof is right."""
    salted = scram.salted_password(SCRAM_SHA_256, "pencil", b"a salt of 16 bytes", 4096)
    for without, is_right in (
        ("c=biws,r=abcserverside", True),
        ("c=biws,r=abcother", False),
        ("c=eSws,r=abcserverside", False),
    ):
        machine = server(user())
        first = machine.evaluate(b"n,,n=alice,r=abc").token
        message = b"n=alice,r=abc," + first + b"," + without.encode()
        proof = b64encode(scram.client_proof(SCRAM_SHA_256, salted, message))
        final = without.encode() + b",p=" + proof
        if is_right:
            assert isinstance(done := machine.evaluate(final), Authenticated) and done.name == "alice"
            continue
        with pytest.raises(LoginRefused):
            machine.evaluate(final)


def test_a_client_refuses_a_server_that_wants_minutes_of_hashing() -> None:
    client = ClientLogin(PasswordLogin(SCRAM_SHA_512, "alice", "pencil"), "n0nce")
    client.first_token()
    for count in (b"1", b"4095", b"1000001", b"99999999999", b"-5", b"x"):
        with pytest.raises(LoginFailed):
            client.next_token(b"r=n0nceserver,s=c2FsdA==,i=" + count)


LIKELY = st.sampled_from([b"n,,n=alice,r=a", b"c=biws,r=aserverside,p=AAAA"])


@given(st.lists(st.binary(max_size=80) | LIKELY, max_size=5))
def test_any_bytes_in_any_order_end_in_a_refusal(tokens: list[bytes]) -> None:
    """Never another exception, never a login."""
    machine = server(user())
    for token in tokens:
        try:
            assert isinstance(machine.evaluate(token), Challenge)
        except LoginRefused:
            return
