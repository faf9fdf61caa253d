"""What a command advises when TLS fails. The errors are OpenSSL's own, of a handshake in memory."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.net.certificates import Authority
from thermocline.cli.clients.advice import closed_advice, running_advice, tls_advice
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import Exit

CA = Authority()


def failure(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLError:
    """The client's error of a handshake and one read."""
    one, other = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
    theirs = server.wrap_bio(*one, server_side=True)
    ours = client.wrap_bio(*other, server_hostname=host)
    for _ in range(5):
        for side in (ours, theirs):
            try:
                side.do_handshake()
                side.read(1)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as failed:
                if side is ours:
                    return failed
            one[0].write(other[1].read())
            other[0].write(one[1].read())
    raise AssertionError("the handshake did not fail")


def said(directory: Path, *, host: str = "localhost", known: bool = True, asks: bool = False, **signed: object) -> str:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(CA.sign(**signed).write(directory / "broker.pem"))  # type: ignore[arg-type]
    server.load_verify_locations(cadata=CA.pem)
    server.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    client = ssl.create_default_context(cadata=(CA if known else Authority()).pem)
    return tls_advice(failure(server, client, host))


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"lasts": timedelta(hours=-1)}, "`thermocline certificate renew`"),
        ({"begins": timedelta(hours=1)}, "check the clocks"),
        ({"host": "other.example"}, "--advertise"),
        ({"host": "10.0.0.9"}, "the advertised one"),
        ({"asks": True}, "that port wants a client certificate"),
        ({"known": False}, "is its CA the one of ssl.ca.location"),
    ],
)
def test_each_failure_of_tls_has_its_own_advice(tmp_path: Path, given: dict[str, object], advice: str) -> None:
    """Every one was told to look for its CA."""
    shown = said(tmp_path, **given)  # type: ignore[arg-type]
    assert advice in shown, shown
    assert ("is its CA" in shown) == ("known" in given)


def test_a_port_that_closes_the_connection_may_want_tls_or_a_login() -> None:
    running = running_advice(None)
    assert closed_advice(running, uses_tls=False).endswith(
        "The port may want TLS or a login: give --command-config (security.protocol)"
    )
    assert "may want a login" in closed_advice(running, uses_tls=True)


def test_an_address_of_the_file_is_named_with_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice was about `-b`, which was not given."""
    file = tmp_path / "admin.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\n")
    for words in (["topic", "list"], ["topic", "describe", "t"]):
        assert main([*words, "--command-config", str(file)]) == Exit.FAILED
        said = capsys.readouterr().err
        assert f"is this its address (from bootstrap.servers of {file})?" in said and " -b " not in said
    assert main(["topic", "list", "-b", "127.0.0.1:1", "--command-config", str(file)]) == Exit.FAILED
    assert "is -b its address?" in capsys.readouterr().err
