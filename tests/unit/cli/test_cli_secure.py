"""`serve --secure`, `thermocline certificate`: files of a secured directory, what is renewed, what is refused."""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from broker.config.broker_config import BrokerConfig
from broker.config.network.addresses import show_address
from broker.config.places import Launch
from broker.config.resolve import resolve
from broker.config.sources import ConfigError, Explicit
from broker.security_protocol import SecurityProtocol
from logformat.properties import properties_in
from thermocline.cli.main import main
from thermocline.cli.serve.secure import settings
from thermocline.cli.serve.secure.authority import BROKER_DAYS, RENEW_BEFORE_DAYS, Authority, due, flaw
from thermocline.cli.serve.secure.directory import JOIN, SecuredDirectory
from thermocline.cli.serve.secure.setup import secured_config
from thermocline.cli.terminal.outcome import CommandFailed, Exit

NOW = datetime(2026, 11, 28, tzinfo=UTC)
HOSTS = ("kafka.example", "10.0.0.1", "::1")


def secured(place: Path) -> SecuredDirectory:
    made = SecuredDirectory(place)
    made.establish(Authority.new(NOW), "token")
    return made


def config_of(
    place: Path, join: Path | None = None, bucket: Path | None = None, file_text: str | None = None
) -> BrokerConfig:
    def resolved(defaults: Mapping[str, str], *, is_judged: bool = True) -> BrokerConfig:
        flags = {"log.dirs": str(place), "thermocline.bucket": f"file://{bucket or place.parent / 'bucket'}"}
        return resolve(flags, [], {}, file_text, Launch(insecure=not is_judged), defaults)

    given = argparse.Namespace(secured_by=None, join=None if join is None else str(join))
    return secured_config(given, resolved, "machine-7")


# --- certificates ---------------------------------------------------------------------------------------------------


def test_a_certificate_serves_its_hosts_until_it_expires() -> None:
    authority = Authority.new(NOW)
    pem, end = authority.issue("broker-1", HOSTS, NOW), NOW + timedelta(days=BROKER_DAYS)
    assert flaw(pem, authority.certificate, HOSTS[:2], NOW) is None
    assert flaw(pem, authority.certificate, HOSTS, end - timedelta(hours=1)) is None
    assert flaw(pem, authority.certificate, HOSTS, end) == f"ended on {end:%Y-%m-%d}"
    assert flaw(pem, authority.certificate, ("other.example",), NOW) == "lacks host other.example"
    assert flaw(pem, Authority.new(NOW).certificate, HOSTS, NOW) == "is not signed by this cluster's CA", (
        "the same name"
    )
    assert not due(end, end - timedelta(days=RENEW_BEFORE_DAYS, hours=1)) and due(end, end - timedelta(days=1))
    assert flaw(b"no certificate", authority.certificate, HOSTS, NOW) == "has no certificate in PEM"


def test_a_broker_is_no_authority_and_the_authority_signs_no_authority() -> None:
    authority = Authority.new(NOW)
    broker = x509.load_pem_x509_certificates(authority.issue("broker-1", HOSTS, NOW))[0]
    limits = authority.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)
    assert not broker.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.certificate.not_valid_before_utc < NOW, "a clock that is behind may use it"


# --- the directory --------------------------------------------------------------------------------------------------


def test_files_with_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    config_of(tmp_path / "data")
    public = {"ca.pem"}
    files = [file for file in (tmp_path / "data").rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"ca-key.pem", "broker-1.pem", "http-token", "admin.properties", JOIN}
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == (0o644 if file.name in public else 0o600), file


def test_a_second_start_keeps_keys_password_and_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = config_of(tmp_path / "data")
    before = {file: file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()}
    printed = capsys.readouterr().err
    assert first.first_users[0].password not in printed, "stderr is no terminal here, so perhaps a log"
    assert "admin.properties" in printed
    second = config_of(tmp_path / "data")
    assert {file: file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()} == before
    assert second == first
    assert capsys.readouterr().err == ""


def test_the_first_password_is_printed_to_a_terminal_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    password = config_of(tmp_path / "data").first_users[0].password
    config_of(tmp_path / "data")
    assert capsys.readouterr().err.count(password) == 1


def test_a_first_start_that_was_cut_off_leaves_no_cluster_without_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever file it ended before, the next start knows the first user's password, or makes all anew."""
    replace = os.replace
    for cut in range(1, 9):
        place, writes = tmp_path / f"cut-{cut}" / "data", 0

        def cut_off(source: str, target: str, cut: int = cut) -> None:
            nonlocal writes
            writes += 1
            if writes == cut:
                raise OSError(5, "cut off")
            replace(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", cut_off)
            with pytest.raises(CommandFailed):
                config_of(place)
        assert config_of(place).first_users, f"cut off at write {cut}"


def test_a_host_that_the_certificate_does_not_name_gets_a_new_one(tmp_path: Path) -> None:
    directory = secured(tmp_path)
    assert directory.certify(1, HOSTS, NOW)
    assert not directory.certify(1, HOSTS[:1], NOW)
    assert directory.certify(1, (*HOSTS, "new.example"), NOW)
    directory.authority_key_file.unlink()
    assert not directory.certify(1, HOSTS, NOW)
    with pytest.raises(CommandFailed, match=r"broker-1\.pem lacks host another\.example, but .*ca-key.*docs/security"):
        directory.certify(1, ("another.example",), NOW)
    with pytest.raises(CommandFailed, match=r"broker-2\.pem does not exist"):
        directory.certify(2, HOSTS, NOW)


def test_a_start_without_the_authoritys_key_warns_while_the_certificate_is_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the key offline, as the checklist advises, every start of the last 30 days was refused."""
    config_of(tmp_path / "data")
    directory, now = SecuredDirectory(tmp_path / "data"), datetime.now(UTC)
    _, hosts, _ = next(directory.certificates())
    key = directory.authority_key_file.read_bytes()
    for days_left, said in ((20, "ends on"), (-1, "ended on")):
        directory.authority_key_file.write_bytes(key)
        directory.certify(1, hosts, now - timedelta(days=BROKER_DAYS - days_left), anew=True)
        directory.authority_key_file.unlink()
        capsys.readouterr()
        if days_left > 0:
            config_of(tmp_path / "data")
            assert f"broker-1.pem {said} {now + timedelta(days=days_left):%Y-%m-%d}" in capsys.readouterr().err
        else:
            with pytest.raises(CommandFailed, match=f"broker-1.pem {said} .*if the key is lost"):
                config_of(tmp_path / "data")
    directory.authority_key_file.write_bytes(key)
    config_of(tmp_path / "data")
    assert "new certificate of broker 1" in capsys.readouterr().err


def test_a_start_replaces_a_certificate_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`certificate list` says so; the start was refused, and did not name the file."""
    config_of(tmp_path / "data")
    directory = SecuredDirectory(tmp_path / "data")
    directory.broker_file(1).write_bytes(b"garbage")
    capsys.readouterr()
    config_of(tmp_path / "data")
    assert "new certificate of broker 1" in capsys.readouterr().err and list(directory.certificates())
    directory.broker_file(1).with_name("broker-old.pem").write_bytes(directory.broker_file(1).read_bytes())
    assert [file.name for file, _, _ in directory.renew(datetime.now(UTC))] == ["broker-1.pem"], "a copy is left alone"
    directory.broker_file(1).write_bytes(b"garbage")
    directory.authority_key_file.unlink()
    with pytest.raises(CommandFailed, match=r"broker-1\.pem has no certificate in PEM, but .*ca-key"):
        config_of(tmp_path / "data")
    directory.authority_file.write_bytes(b"garbage")
    with pytest.raises(CommandFailed, match=r"ca\.pem: no certificate in PEM$"):
        config_of(tmp_path / "data")


def test_a_joined_directory_has_the_clusters_authority_and_no_admin(tmp_path: Path) -> None:
    config_of(tmp_path / "one")
    joined = config_of(tmp_path / "two", join=tmp_path / "one" / JOIN, bucket=tmp_path / "bucket")
    one, two = SecuredDirectory(tmp_path / "one"), SecuredDirectory(tmp_path / "two")
    assert one.authority_file.read_bytes() == two.authority_file.read_bytes()
    assert one.token_file.read_bytes() == two.token_file.read_bytes()
    assert not two.admin_file.exists() and joined.first_users == ()
    assert dict(properties_in((tmp_path / "two" / JOIN).read_text())) == dict(
        properties_in((tmp_path / "one" / JOIN).read_text())
    )


@pytest.mark.parametrize("damage", ["thermocline.cluster.ca.key=", "thermocline.cluster.ca.key=nonsense"])
def test_a_join_file_that_cannot_be_used_is_named(tmp_path: Path, damage: str) -> None:
    secured(tmp_path / "one")
    bad = tmp_path / "bad.properties"
    bad.write_text((tmp_path / "one" / JOIN).read_text() + damage + "\n")
    with pytest.raises(CommandFailed, match=r"bad\.properties"):
        SecuredDirectory(tmp_path / "two").join(bad)
    assert SecuredDirectory(tmp_path / "two").is_new


# --- the configuration ----------------------------------------------------------------------------------------------


def test_clients_log_in_over_tls_and_brokers_show_certificates(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data")
    assert [one.protocol for one in config.listeners] == [SecurityProtocol.SASL_SSL]
    assert config.internal is not None and config.internal.protocol is SecurityProtocol.SSL
    assert config.configured["listener.name.brokers.ssl.client.auth"] == "required"
    assert config.authorizer is not None
    assert config.first_users[0].username == settings.ADMIN_USER


def test_every_port_may_be_reached_by_other_machines(tmp_path: Path) -> None:
    """HTTP's and the brokers' too, for their protection is part of --secure; nothing is open."""
    places = "listeners=SASL_SSL://0.0.0.0:9092\nthermocline.internal=0.0.0.0:9093\nthermocline.http=0.0.0.0:9644\n"
    config = config_of(tmp_path / "data", file_text=places)
    assert config.insecure == () and config.http_host == "0.0.0.0"
    with pytest.raises(ConfigError, match="without authentication"):
        config_of(tmp_path / "data", file_text=f"{places}security.inter.broker.protocol=PLAINTEXT\n")


def test_a_named_listener_of_brokers_and_named_ones_of_clients_are_secured(tmp_path: Path) -> None:
    text = (
        "listeners=OUT://0.0.0.0:9092,IN://10.0.0.1:9093\ninter.broker.listener.name=IN\n"
        "listener.security.protocol.map=OUT:SASL_SSL,IN:SSL\nadvertised.listeners=OUT://kafka.example:9092,IN://10.0.0.1:9093"
    )
    config = config_of(tmp_path / "data", file_text=text)
    assert config.internal is None and config.brokers_listener == "IN" and config.insecure == ()
    assert config.configured["listener.name.in.ssl.client.auth"] == "required"
    assert "thermocline-broker" in config.configured["listener.name.in.ssl.principal.mapping.rules"]
    assert [user.username for user in config.first_users] == [settings.ADMIN_USER]


def test_who_is_a_broker_is_no_matter_of_the_clients_trust_store(tmp_path: Path) -> None:
    """A CA that signs certificates for clients must not make brokers: any name can be in them, `CN=broker-7` too."""
    secured_config_of = config_of(tmp_path / "data")
    directory = SecuredDirectory(tmp_path / "data")
    chosen = {"ssl.truststore.location": "/clients-ca.pem", "ssl.keystore.location": "/public.pem"}
    of_brokers = Explicit(dict(secured_config_of.configured) | chosen).of_listener("BROKERS")
    assert of_brokers.text("ssl.truststore.location") == str(directory.authority_file)
    assert of_brokers.text("ssl.keystore.location") == str(directory.broker_file(1))


def test_new_directories_of_records_and_users_are_private(tmp_path: Path) -> None:
    """The bucket of a directory holds SCRAM keys, and records beside them."""
    config_of(tmp_path / "data")
    (tmp_path / "shared").mkdir(mode=0o755)
    config_of(tmp_path / "other", bucket=tmp_path / "shared")
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("data", "bucket", "other", "shared")}
    assert modes == {"data": 0o700, "bucket": 0o700, "other": 0o700, "shared": 0o755}


def test_a_start_names_existing_directories_that_others_may_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records have the mode 0644; only a directory keeps other users of the machine away."""
    for name, mode in (("data", 0o755), ("bucket", 0o710)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    config_of(tmp_path / "data")
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert [line.rpartition(" ")[2] for line in warned] == [str(tmp_path / name) for name in ("data", "bucket")]
    for name in ("data", "bucket"):
        (tmp_path / name).chmod(0o700)
    config_of(tmp_path / "data")
    assert "warning" not in capsys.readouterr().err


def test_a_join_file_that_others_may_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds the CA's key, which makes brokers."""
    config_of(tmp_path / "first")
    join = tmp_path / "first" / JOIN
    for number, mode in enumerate((0o600, 0o644)):
        join.chmod(mode)
        capsys.readouterr()
        config_of(tmp_path / f"other-{number}", join=join)
        assert (f"warning: other users of this machine may open {join}" in capsys.readouterr().err) is (mode == 0o644)


@pytest.mark.parametrize(
    ("listen", "brokers"),
    [("127.0.0.1:9092", "127.0.0.1:0"), ("0.0.0.0:9092", "0.0.0.0:10092"), ("10.0.0.7:65000", "10.0.0.7:0")],
)
def test_brokers_of_other_machines_reach_a_broker_that_clients_reach(tmp_path: Path, listen: str, brokers: str) -> None:
    config = config_of(tmp_path / "data", file_text=f"listeners={settings.listener_text(listen)}")
    assert config.internal is not None
    assert show_address(config.internal.host, config.internal.port) == brokers


def test_client_files_follow_another_authority(tmp_path: Path) -> None:
    data = tmp_path / "data"
    password = config_of(data).first_users[0].password
    shutil.rmtree(data / "security")
    assert main(["certificate", "authority", "--data-dir", str(data)]) == Exit.DONE
    assert config_of(data).first_users[0].password == password
    directory = SecuredDirectory(data)
    for name in ("admin.properties", "client.properties"):
        told = dict(properties_in((data / name).read_text()))
        assert told["ssl.truststore.certificates"] == directory.authority_file.read_text()
        assert told.get("thermocline.http.token", "") in ("", directory.token_file.read_text().strip())


def test_client_files_follow_another_address(tmp_path: Path) -> None:
    """CA and token were updated, and the address was that of the first start. An operator's list stays."""
    data, listen = tmp_path / "data", "listeners=SASL_SSL://127.0.0.1:{}"
    names = ("admin.properties", "client.properties", "client.librdkafka.properties")

    def told() -> set[str]:
        return {dict(properties_in((data / name).read_text()))["bootstrap.servers"] for name in names}

    config_of(data, file_text=listen.format(9092))
    assert told() == {"127.0.0.1:9092"}
    before = dict(properties_in((data / names[0]).read_text()))
    config_of(data, file_text=f"{listen.format(9192)}\nadvertised.listeners=SASL_SSL://localhost:9192")
    assert told() == {"localhost:9192"}
    assert dict(properties_in((data / names[0]).read_text())) == before | {"bootstrap.servers": "localhost:9192"}
    config_of(data, file_text=f"{listen.format(9392)}\nnode.id=2")
    assert told() == {"localhost:9192"}, "the second of --brokers 2"
    several = "a.example:9092,b.example:9092"
    for name in names:
        (data / name).write_text(
            (data / name).read_text().replace("localhost\\:9192", several).replace("localhost:9192", several)
        )
    config_of(data, file_text=listen.format(9292))
    assert told() == {several}


def test_addresses_without_a_protocol_are_secured_ones() -> None:
    assert settings.listener_text("0.0.0.0:9092, PLAIN://127.0.0.1:9093") == (
        "SASL_SSL://0.0.0.0:9092,PLAIN://127.0.0.1:9093"
    )


# --- the command ----------------------------------------------------------------------------------------------------


def test_renewed_certificates_name_the_same_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = secured(tmp_path)
    directory.certify(1, HOSTS, NOW)
    before = directory.broker_file(1).read_bytes()
    assert main(["certificate", "renew", "--data-dir", str(tmp_path)]) == Exit.DONE
    assert directory.broker_file(1).read_bytes() != before
    assert [set(hosts) for _, hosts, _ in directory.certificates()] == [set(HOSTS)]
    assert main(["certificate", "list", "--data-dir", str(tmp_path), "--json"]) == Exit.DONE
    assert "kafka.example" in capsys.readouterr().out


def test_a_lost_authority_is_replaced_only_where_none_is(tmp_path: Path) -> None:
    assert main(["certificate", "authority", "--data-dir", str(tmp_path)]) == Exit.DONE
    before = SecuredDirectory(tmp_path).authority_file.read_bytes()
    assert main(["certificate", "authority", "--data-dir", str(tmp_path)]) == Exit.USAGE
    assert SecuredDirectory(tmp_path).authority_file.read_bytes() == before
    assert main(["certificate", "list", "--data-dir", str(tmp_path / "none")]) == Exit.USAGE


def test_an_expired_certificate_is_marked_and_an_unreadable_one_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first was shown as any other, the second with a link to the questions of a library."""
    directory = secured(tmp_path)
    directory.certify(1, HOSTS, datetime.now(UTC) - timedelta(days=BROKER_DAYS))
    directory.certify(2, HOSTS, datetime.now(UTC))
    assert main(["certificate", "list", "--data-dir", str(tmp_path)]) == Exit.DONE
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "(expired)" in rows["broker-1.pem"] and "(expired)" not in rows["broker-2.pem"]
    directory.broker_file(1).write_bytes(b"garbage")
    assert main(["certificate", "list", "--data-dir", str(tmp_path)]) == Exit.USAGE
    said = capsys.readouterr()
    assert f"{directory.broker_file(1)}: no broker's certificate in PEM" in said.err and "https:" not in said.err
    assert "broker-2.pem" in said.out, "the list ended at the first unreadable file"
    before = directory.broker_file(2).read_bytes()
    assert main(["certificate", "renew", "--data-dir", str(tmp_path)]) == Exit.USAGE
    assert directory.broker_file(2).read_bytes() != before
