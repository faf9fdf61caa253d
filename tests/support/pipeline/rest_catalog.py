"""An Iceberg REST catalog in a thread, for tests: the part of the protocol that an archive speaks, over a SQLite one.

Iceberg's own `rest-catalog-open-api`: config, namespaces, tables, and the commit with its requirements, which the
catalog behind checks and swaps atomically.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

from tests.support.net.http_stand_in import QuietHandler, http_server

_STATUS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


@contextmanager
def rest_catalog(behind: Catalog) -> Iterator[str]:
    """Its URL."""
    lock = threading.Lock()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes | None) -> None:
            try:
                with lock:
                    status, text = 200, _route(behind, self.path.split("?")[0].strip("/").split("/"), body)
            except tuple(_STATUS) as refused:
                status = next(code for kind, code in _STATUS.items() if isinstance(refused, kind))
                error = {"message": str(refused), "type": type(refused).__name__, "code": status}
                text = json.dumps({"error": error})
            self.reply(status, text)

    with http_server(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def _route(behind: Catalog, path: list[str], body: bytes | None) -> str:
    match path[1:]:
        case ["config"]:
            return json.dumps({"defaults": {}, "overrides": {}})
        case ["namespaces"] if body is not None:
            names = json.loads(body)["namespace"]
            behind.create_namespace(tuple(names))
            return json.dumps({"namespace": names, "properties": {}})
        case ["namespaces", namespace, "tables"] if body is not None:
            wanted = json.loads(body)
            schema = Schema.model_validate(wanted["schema"])
            properties = wanted.get("properties") or {}
            return _told(behind.create_table((namespace, wanted["name"]), schema=schema, properties=properties))
        case ["namespaces", namespace, "tables", name]:
            table = behind.load_table((namespace, name))
            if body is not None:
                request = CommitTableRequest.model_validate_json(body)
                behind.commit_table(table, request.requirements, request.updates)
            return _told(behind.load_table((namespace, name)))
    raise NoSuchTableError(f"no route for {path}")


def _told(table: Table) -> str:
    metadata = json.loads(table.metadata.model_dump_json())
    return json.dumps({"metadata-location": table.metadata_location, "metadata": metadata, "config": {}})
