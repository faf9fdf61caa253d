"""Keys of the demos' cluster under `--secure`, kept apart from brokers' directories, which the demos delete.

The first broker creates them. Later starts join the cluster with these keys, and the demo's clients use the first
user's configuration for `--command-config`. Without `--secure` there are no keys.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thermocline.cli.clients.connection_properties import current, use
from thermocline.cli.serve.secure.directory import ADMIN, JOIN


@dataclass(frozen=True, slots=True)
class Keys:
    """`folder` is None for a cluster without `--secure`."""

    folder: Path | None

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `serve` for the next broker to start."""
        if self.folder is None:
            return ()
        join = self.folder / JOIN
        return ("--secure", *(("--join", str(join)) if join.exists() else ()))

    @property
    def environment(self) -> dict[str, str]:
        """Flags of `thermocline` commands."""
        return {} if self.folder is None else {"THERMOCLINE_COMMAND_CONFIG": str(self.folder / ADMIN)}

    def keep(self, data_dir: Path) -> None:
        """Copy the files that the first broker created in `data_dir`, and configure this process's clients with
        them."""
        if self.folder is None or self.folder.exists():
            return
        self.folder.mkdir(mode=0o700)
        for name in (JOIN, ADMIN):
            shutil.copy2(data_dir / name, self.folder)
        use(str(self.folder / ADMIN), [])


def client(bootstrap: str) -> dict[str, Any]:
    """librdkafka's configs of a client."""
    return {"bootstrap.servers": bootstrap, **current().librdkafka}
