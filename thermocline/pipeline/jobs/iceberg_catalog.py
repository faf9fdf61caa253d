"""Iceberg catalogs: opens the catalog named on the command line, and maps the errors of catalog clients.

A configuration needs no credentials, because the usual chain supplies them. No message contains credentials.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from coldstore.url import DirectoryUrl, parse_bucket_url
from logformat.errors import InvalidRequest, Retryable
from thermocline.extras import require
from thermocline.pipeline.jobs.tables.data_file_storage import make_folder

require("spark", "an Iceberg catalog", "pyiceberg")

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.exceptions import RESTError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.utils.config import Config
from requests.exceptions import RequestException
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError

log = logging.getLogger(__name__)

CATALOG_NAME: Final = "thermocline"
_SQL: Final = ("sqlite:", "postgresql")
_SYNCED_FILES: Final = "thermocline.pipeline.jobs.tables.iceberg_files.SyncedFileIO"
_WAYS: Final = "sqlite:////abs/catalog.db, https://…, glue, memory"


class CatalogUnavailable(Retryable):
    """The catalog did not answer, or answered with an error. The next run sees whether the step was committed."""


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """A pyiceberg catalog's name and properties, usually without credentials."""

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)


def catalog_config(
    catalog: str | None = None, warehouse: str | None = None, properties: Mapping[str, str] | None = None
) -> CatalogConfig:
    """The catalog that a user named. Raises InvalidRequest.

    `catalog`: `sqlite:////abs/catalog.db` (or `postgresql…`), `https://…` (REST), `glue`, `memory`, or the name of a
    catalog in pyiceberg's own configuration. None: a SQLite file in the warehouse, which must then be a directory.
    `warehouse`: a bucket URL, where new tables go. `properties`: pyiceberg's properties, which override all others.
    """
    made: dict[str, str] = {}
    name = CATALOG_NAME
    if warehouse is not None:
        made |= _warehouse_properties(warehouse)
    if catalog is None:
        if not made.get("warehouse", "").startswith("file://"):
            raise InvalidRequest("no catalog: give --catalog, or a --warehouse file:///abs/dir to keep a SQLite one in")
        directory = made["warehouse"].removeprefix("file://")
        made |= {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
    elif catalog == "glue":
        made["type"] = "glue"
    elif catalog == "memory":
        made["type"] = "in-memory"
    elif catalog.startswith(("http://", "https://")):
        made |= {"type": "rest", "uri": catalog}
    elif catalog.startswith(_SQL):
        made |= {"type": "sql", "uri": catalog}
    elif "://" in catalog:
        raise InvalidRequest(f"catalog {catalog}: write {_WAYS}, or a name of pyiceberg's configuration")
    else:
        name = catalog  # a name in pyiceberg's configuration
    return CatalogConfig(name, made | dict(properties or {}))


def _warehouse_properties(text: str) -> dict[str, str]:
    try:
        url = parse_bucket_url(text)
    except InvalidRequest as wrong:
        raise InvalidRequest(f"warehouse: {str(wrong).removeprefix('bucket URL: ')}") from None
    if isinstance(url, DirectoryUrl):
        return {"warehouse": f"file://{url.path}"}
    if url.storage_class is not None or url.sse is not None:
        raise InvalidRequest("warehouse: storage_class, sse and sse_key are not passed on: set the bucket's defaults")
    properties = {"warehouse": f"s3://{url.bucket}" + (f"/{url.prefix}" if url.prefix else "")}
    if url.endpoint is not None:
        properties["s3.endpoint"] = url.endpoint
    if url.region is not None:
        properties["s3.region"] = url.region
    if url.path_style is False:
        properties["s3.force-virtual-addressing"] = "true"
    return properties


def open_catalog(config: CatalogConfig) -> Catalog:
    """Raises InvalidRequest when pyiceberg has no such catalog, or lacks an extra for it."""
    path = _sqlite_path(config.properties)
    if path is not None:
        make_folder(os.path.dirname(path))
    return _loaded(config, config.properties)


def open_existing_catalog(config: CatalogConfig) -> Catalog | None:
    """The existing catalog; creates nothing. None when it does not exist yet.

    Errors: `open_catalog`; CatalogUnavailable when the database cannot be inspected.
    """
    known = _merged(config)
    path = _sqlite_path(known)
    if path is not None and not (os.path.exists(path) and os.path.getsize(path)):
        return None  # opening it would create an empty file
    catalog = _loaded(config, {**config.properties, "init_catalog_tables": "false"})
    if isinstance(catalog, SqlCatalog):  # pyiceberg takes every database error for missing tables
        with catalog_errors(config):
            there = inspect(catalog.engine)
            if not all(there.has_table(table.__tablename__) for table in (IcebergTables, IcebergNamespaceProperties)):
                return None
    return catalog


def check_new_table(config: CatalogConfig) -> None:
    """Raises InvalidRequest when the catalog has no location for a new table, or cannot write there."""
    known = _merged(config)
    warehouse = known.get("warehouse")
    if warehouse is None and known.get("uri", "").startswith(_SQL):
        raise InvalidRequest(f"catalog {shown(config)} does not say where a new table goes: give --warehouse")
    database = _sqlite_path(known)
    if database is not None:
        _check_folder(os.path.dirname(database))
    if warehouse is not None and warehouse.startswith("file:///"):
        _check_folder(warehouse.removeprefix("file://"))


def _check_folder(wanted: str) -> None:
    """The nearest existing folder must be a directory and writable."""
    folder = wanted
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise InvalidRequest(f"{wanted} cannot be created: {folder} is not a directory")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(f"{wanted} cannot be created: this process may not write to {folder}")


def shown(catalog: CatalogConfig | Catalog) -> str:
    """Name and address for people, without user and password. Other programs open the catalog under this name."""
    address = _address(catalog)
    return f"{catalog.name} ({address})" if address else catalog.name


def _address(catalog: CatalogConfig | Catalog) -> str:
    """Without user, password and query; empty when it has none."""
    known = _merged(catalog) if isinstance(catalog, CatalogConfig) else catalog.properties
    uri = urlsplit(known.get("uri", ""))
    return f"{uri.scheme}://{uri.netloc.rpartition('@')[2]}{uri.path}" if uri.scheme else ""


def _merged(config: CatalogConfig) -> dict[str, str]:
    """The catalog's properties, which override the properties in pyiceberg's own configuration for that name."""
    configured = Config().get_catalog_config(config.name) or {}
    return {**{name: str(value) for name, value in configured.items()}, **config.properties}


def _sqlite_path(properties: Mapping[str, str]) -> str | None:
    uri = properties.get("uri", "")
    return uri.removeprefix("sqlite:///").partition("?")[0] if uri.startswith("sqlite:////") else None


def _loaded(config: CatalogConfig, properties: Mapping[str, str]) -> Catalog:
    if _merged(config).get("warehouse", "").startswith(("file:", "/")):
        properties = {PY_IO_IMPL: _SYNCED_FILES, **properties}
    try:
        return load_catalog(config.name, **properties)
    except (ValueError, ImportError) as refused:
        why = str(refused)
        if why.startswith("URI missing"):  # pyiceberg's message continues with a flag of its own command line
            why = (
                "pyiceberg's configuration does not say where it is; name a catalog that is configured there, or "
                f"write {_WAYS}"
            )
        raise InvalidRequest(f"catalog {config.name}: {why}") from refused
    except Exception as failed:  # noqa: BLE001 - two first users of a SQLite file may race to create its tables
        log.debug("opening the catalog once more after: %s", failed)
        return load_catalog(config.name, **properties)


@contextmanager
def catalog_errors(catalog: CatalogConfig | Catalog) -> Iterator[None]:
    """Raise the errors of REST and database clients as CatalogUnavailable, with address and reason."""
    try:
        yield
    except (RequestException, RESTError, DBAPIError) as failed:
        where = _address(catalog) or catalog.name
        text = (
            f"catalog {where}: {_reason(failed)}; is the address right, is it up, and may this process use it? Then "
            "run again"
        )
        raise CatalogUnavailable(text) from failed


def _reason(failed: BaseException) -> str:
    """The operating system's or the database's own message, which clients wrap in layers."""
    if isinstance(failed, DBAPIError):
        return str(failed.orig).partition("\n")[0]
    at: BaseException | None = failed
    while at is not None:
        if isinstance(at, OSError) and at.strerror:
            return at.strerror
        inner = getattr(at.args[0], "reason", None) if at.args else None
        at = inner if isinstance(inner, BaseException) else at.__cause__ or at.__context__
    return f"{type(failed).__name__}: {failed}" if isinstance(failed, RESTError) else type(failed).__name__
