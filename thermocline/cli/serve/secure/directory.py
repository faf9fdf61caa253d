"""The files of a secured data directory: created at the first start, completed at later ones.

- `security/`: `ca.pem`, `ca-key.pem`, `http-token`, and `broker-N.pem`, the key and certificate chain of broker N.
- `join.properties`: the authority and the token, for the directory of another broker of this cluster.
- `admin.properties`: the first user's client configuration; only in the directory that created the cluster.

Files that hold secrets have mode 0600. Files are written atomically. A broker without `ca-key.pem` (an operator may
remove it) serves with its certificate until that expires, but cannot renew it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from logformat.properties import format_properties, properties_in
from seams.files.private_file import write_private
from thermocline.cli.serve.secure.authority import Authority, AuthorityError, described, due, flaw
from thermocline.cli.serve.secure.layout import SECURITY, authority_file, is_secured
from thermocline.cli.terminal.outcome import CommandFailed, Exit

JOIN: Final = "join.properties"
ADMIN: Final = "admin.properties"
BROKER_NAME: Final = "broker-"
"""Beginning of the common name in a broker's certificate; its node id follows."""

_CERTIFICATE: Final = "thermocline.cluster.ca.certificate"
_KEY: Final = "thermocline.cluster.ca.key"
_TOKEN: Final = "thermocline.cluster.http.token"


@dataclass(frozen=True, slots=True)
class SecuredDirectory:
    """Paths of `data_dir`. All methods block, and raise CommandFailed for files that cannot be used."""

    data_dir: Path

    @property
    def authority_file(self) -> Path:
        return authority_file(self.data_dir)

    @property
    def authority_key_file(self) -> Path:
        return self.data_dir / SECURITY / "ca-key.pem"

    def broker_file(self, node_id: int) -> Path:
        return self.data_dir / SECURITY / f"broker-{node_id}.pem"

    @property
    def token_file(self) -> Path:
        return self.data_dir / SECURITY / "http-token"

    @property
    def admin_file(self) -> Path:
        return self.data_dir / ADMIN

    @property
    def is_new(self) -> bool:
        """Whether the directory has no authority yet."""
        return not is_secured(self.data_dir)

    def establish(self, authority: Authority, token: str) -> None:
        """Give the directory the cluster's authority, and the token of its HTTP ports. `ca.pem` is written last,
        because without it the directory counts as new."""
        (self.data_dir / SECURITY).mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(self.authority_key_file, authority.key_pem)
        _write(self.token_file, token.encode() + b"\n")
        told = {_CERTIFICATE: authority.certificate_pem.decode(), _KEY: authority.key_pem.decode(), _TOKEN: token}
        _write(self.data_dir / JOIN, format_properties(told))
        _write(self.authority_file, authority.certificate_pem, mode=0o644)

    def join(self, join_file: Path) -> None:
        """Use the authority and token of the cluster with the `join.properties` file `join_file`."""
        self.establish(*joined(join_file))

    def certify(self, node_id: int, hosts: Iterable[str], now: datetime, *, anew: bool = False) -> bool:
        """Issue a certificate for `hosts` to broker `node_id`, unless the broker has a certificate whose renewal is not
        due. Returns whether a certificate was issued. `anew`: always issue. Without the authority's key a certificate
        that is due stays, as long as it is valid."""
        hosts, file = tuple(hosts), self.broker_file(node_id)
        wrong = self._wrong(file, hosts, now)
        is_due = wrong is None and due(described(_read(file))[1], now)
        if not anew and wrong is None and not (is_due and self.authority_key_file.exists()):
            return False
        if not self.authority_key_file.exists():
            raise CommandFailed(
                f"{file} {wrong or 'is to be renewed'}, but {self.authority_key_file} is not here to sign a "
                f"certificate for {', '.join(hosts)}: put the CA's key back for this start, or sign the "
                "certificate with it elsewhere; if the key is lost, the cluster needs a new CA (docs/security.md, "
                "section Renew, rotate, revoke)",
                Exit.USAGE,
            )
        _write(file, self._authority().issue(f"{BROKER_NAME}{node_id}", hosts, now))
        return True

    def _wrong(self, file: Path, hosts: tuple[str, ...], now: datetime) -> str | None:
        """The reason why the certificate in `file` cannot serve `hosts` now."""
        if not file.exists():
            return "does not exist"
        try:
            authority = x509.load_pem_x509_certificate(_read(self.authority_file))
        except ValueError as unreadable:
            raise CommandFailed(f"{self.authority_file}: no certificate in PEM", Exit.USAGE) from unreadable
        return flaw(_read(file), authority, hosts, now)

    def ending(self, node_id: int, now: datetime) -> datetime | None:
        """The expiry of the broker's certificate, if it should have been renewed by now."""
        expires = described(_read(self.broker_file(node_id)))[1]
        return expires if due(expires, now) else None

    def renew(self, now: datetime) -> Iterator[tuple[Path, tuple[str, ...], datetime]]:
        """Renew every broker's certificate for its hosts. Returns each file, its hosts and its expiry. Raises
        CommandFailed, after the others, for files that are no certificates."""
        for file, hosts, _ in self.certificates():
            self.certify(int(file.stem.removeprefix(BROKER_NAME)), hosts, now, anew=True)
            yield file, *described(_read(file))

    def certificates(self) -> Iterator[tuple[Path, tuple[str, ...], datetime]]:
        """Each existing certificate's file, its hosts and its expiry. Raises CommandFailed, after the others, for files
        that are no certificates."""
        unreadable: list[str] = []
        for node_id in self.nodes():
            file = self.broker_file(node_id)
            try:
                hosts, expires = described(_read(file))
            except AuthorityError as refused:
                unreadable.append(f"{file}: {refused}")
                continue
            yield file, hosts, expires
        if unreadable:
            raise CommandFailed("; ".join(unreadable), Exit.USAGE)

    def nodes(self) -> list[int]:
        """Node ids of the brokers that have a certificate here."""
        files = (self.data_dir / SECURITY).glob(f"{BROKER_NAME}*.pem")
        found = (file.stem.removeprefix(BROKER_NAME) for file in files)
        return sorted(int(node) for node in found if node.isdecimal())

    def _authority(self) -> Authority:
        try:
            return Authority.read(_read(self.authority_file), _read(self.authority_key_file))
        except AuthorityError as refused:
            raise CommandFailed(f"{self.data_dir / SECURITY}: {refused}", Exit.USAGE) from refused


def joined(join_file: Path) -> tuple[Authority, str]:
    """Authority and token in the `join.properties` file. Raises CommandFailed."""
    given = dict(properties_in(_read(join_file).decode("utf-8", "replace")))
    if missing := [name for name in (_CERTIFICATE, _KEY, _TOKEN) if not given.get(name)]:
        raise CommandFailed(f"--join {join_file}: it has no {missing[0]}; give a join.properties", Exit.USAGE)
    try:
        authority = Authority.read(given[_CERTIFICATE].encode(), given[_KEY].encode())
    except AuthorityError as refused:
        raise CommandFailed(f"--join {join_file}: {refused}", Exit.USAGE) from refused
    return authority, given[_TOKEN]


def write_secret(path: Path, text: bytes) -> None:
    """Write the file atomically, with mode 0600; creates its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, text)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as failed:
        raise CommandFailed(f"{path}: {failed.strerror}", Exit.USAGE) from failed


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    try:
        write_private(str(path), data, replace=True, mode=mode)
    except OSError as failed:
        raise CommandFailed(f"{path}: {failed.strerror}", Exit.FAILED) from failed
