"""A `docker` for programs that stop, start and read the logs of the brokers they test: `docker compose stop kafka-1`.

Owns the program (a script in a folder that comes first in PATH) and what it reaches: a server in the test's process,
which does the work in threads of its own, one at a time. Must not know what a broker is.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.net.http_stand_in import QuietHandler, http_server

_PREFIX: Final = "kafka-"
_SCRIPT: Final = """#!{python}
import sys, urllib.request
assert sys.argv[1] == "compose", sys.argv
with urllib.request.urlopen("http://127.0.0.1:{port}/" + sys.argv[2] + "/" + sys.argv[-1], timeout=120) as said:
    print(said.read().decode(), end="")
"""


@contextlib.contextmanager
def docker_stand_in(folder: Path, actions: Mapping[str, Callable[[int], str]]) -> Iterator[Path]:
    """The folder that the script is in. `actions`: by verb, what is done with the number of the service, and
    what the program then prints."""
    one_at_a_time = threading.Lock()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            _, verb, service = self.path.split("/")
            with one_at_a_time:
                said = actions[verb](int(service.removeprefix(_PREFIX)))
            self.reply(200, said)

    folder.mkdir()
    with http_server(Handler) as port:
        script = folder / "docker"
        script.write_text(_SCRIPT.format(python=sys.executable, port=port))
        script.chmod(0o755)
        yield folder
