"""A running broker reads its files again, by SIGHUP and by `thermocline certificate reload`, and says what it did."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]
from cryptography import x509

from coldstore.encryption.key_file import KeyFile, encode, plain_entry
from tests.support.net.certificates import Authority
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.sasl_site import PASSWORD, client, command_config, jaas, write_properties
from tests.support.processes.site import json_lines, thermocline
from tests.support.waiting import wait_until
from thermocline.cli.terminal.outcome import Exit

pytestmark = [pytest.mark.timeout(180)]
PLAIN = "listener.name.out.plain.sasl.jaas.config="


class Place:
    """Its files: users in `server.properties`, a key file, a certificate of listener TLS."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority()
        self.certificate, self.keys = directory / "broker.pem", directory / "encryption.json"
        self.certificate.write_text(self.authority.sign("broker").pem())
        self.write_keys("one")
        self.config = write_properties(
            directory,
            "thermocline.encryption.key.file=" + str(self.keys),
            "listener.name.tls.ssl.keystore.location=" + str(self.certificate),
            "listener.name.tls.scram-sha-512.sasl.jaas.config="
            + jaas("scram.ScramLoginModule", username="other", password=PASSWORD),
        )
        self.change("listeners=OUT://127.0.0.1:0", "listeners=OUT://127.0.0.1:0,TLS://127.0.0.1:0")
        self.change("OUT:SASL_PLAINTEXT,IN", "OUT:SASL_PLAINTEXT,TLS:SASL_SSL,IN")

    def change(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def write_keys(self, active: str, *others: str) -> None:
        entries = {name: plain_entry(name.encode().ljust(32, b".")) for name in (active, *others)}
        self.keys.write_bytes(encode(KeyFile(1, active, False, entries)))
        self.keys.chmod(0o600)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def broker(place: Place) -> Iterator[BrokerProcess]:
    with running_broker(place.directory / "broker", None, "--config", str(place.config), listen=None) as found:
        yield found


def logs_in(broker: BrokerProcess, user: str, password: str) -> bool:
    admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0} | client("PLAIN", user, password))
    try:
        admin.list_topics(timeout=4)
    except KafkaException:
        return False
    return True


def serial_of(broker: BrokerProcess) -> int:
    """Of the certificate that listener TLS shows."""
    (host, port), context = _address(broker), ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), 10) as plain, context.wrap_socket(plain) as tls:
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def _address(broker: BrokerProcess) -> tuple[str, int]:
    (at,) = (one for one in broker.ready["listeners"].split(",") if one.startswith("TLS://"))
    host, _, port = at.removeprefix("TLS://").rpartition(":")
    return host, int(port)


def test_a_reload_says_what_it_loaded_and_what_stays(place: Place, broker: BrokerProcess) -> None:
    admin = str(command_config(place.directory, "SCRAM-SHA-512", "broker"))

    def reload() -> tuple[int, dict[str, tuple[str, str]], str]:
        done = thermocline("certificate", "reload", "--json", "-b", broker.kafka, "--command-config", admin)
        found = {line["what"]: (line["outcome"], line["says"]) for line in json_lines(done.stdout)}
        return done.returncode, found, done.stderr

    code, found, _ = reload()
    assert code == Exit.DONE and {outcome for outcome, _ in found.values()} == {"unchanged"}
    assert found.keys() == {"listener TLS", "the users of PLAIN", "the keys of the bucket"}
    serial = serial_of(broker)
    place.certificate.write_text(place.authority.sign("broker").pem())
    place.write_keys("two", "one")
    place.change(f'user_alice="{PASSWORD}"', 'user_alice="another" user_carol="new"')
    code, found, _ = reload()
    assert code == Exit.DONE and {outcome for outcome, _ in found.values()} == {"loaded"}
    assert found["the keys of the bucket"][1] == "2 keys, new objects are encrypted under two"
    assert serial_of(broker) != serial
    assert logs_in(broker, "carol", "new") and logs_in(broker, "alice", "another")
    assert not logs_in(broker, "alice", PASSWORD)
    place.certificate.write_text("half a certif")
    place.change(PLAIN, "listener.name.out.plain.sasl.jaas.confik=")
    code, found, said = reload()
    assert code == Exit.FAILED and "not used" in said
    assert [found[what][0] for what in ("listener TLS", "the users of PLAIN")] == ["refused", "refused"]
    assert "no client could log in by PLAIN" in found["the users of PLAIN"][1]
    assert logs_in(broker, "carol", "new"), "the old ones stay"
    assert "another" not in broker.log() and not any("carol" in says for _, says in found.values())


def test_sighup_reloads_and_stops_nothing(place: Place, broker: BrokerProcess) -> None:
    place.change(f'user_alice="{PASSWORD}"', f'user_alice="{PASSWORD}" user_carol="new"')
    assert not logs_in(broker, "carol", "new")
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reload (SIGHUP): the users of PLAIN: loaded (3 in use)" in broker.log(), "the reload")
    assert logs_in(broker, "carol", "new")
    assert broker.stop() == Exit.DONE


def test_sighup_to_several_brokers_reaches_each(tmp_path: Path) -> None:
    with running_broker(tmp_path / "brokers", None, "--brokers", "2") as found:
        found.process.send_signal(signal.SIGHUP)
        said = "reload (SIGHUP): no certificate, key or user of this broker comes from a file"
        wait_until(lambda: found.log().count(said) == 2, "both reload")
        assert found.stop() == Exit.DONE


def test_who_has_no_rights_reloads_nothing(place: Place, broker: BrokerProcess) -> None:
    """The verb needs what `tier seal` needs: the address, and the token where there is one."""
    stranger = str(command_config(place.directory, "PLAIN", "alice", "wrong"))
    done = thermocline("certificate", "reload", "-b", broker.kafka, "--command-config", stranger)
    assert done.returncode == Exit.FAILED and "Authentication failed" in done.stderr, done.stderr
    assert "reload (" not in broker.log()
