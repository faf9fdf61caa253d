"""A Spark session with the settings this source wants, on this machine or any master.

Owns those settings. Always true: what the caller sets wins; a session that exists already is given back as it is (Spark
has one a process). Must not know sources or jobs.
"""

from __future__ import annotations

import os
import site
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from thermocline.extras import require
from thermocline.pipeline.spark.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A Python task costs 16 ms over a Unix socket and 45 ms over TCP; filters reach a Python source only on request.
SETTINGS: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",  # a laptop's own name often does not resolve
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    app_name: str = "thermocline", master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one on `master` (None: what spark-submit was told, else all cores here).

    Finds Java first, one from PyPI where the machine has none. `settings` are Spark's own names and win.
    """
    require("spark", "a Spark session", "pyspark")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit runs us: its Java and its master are chosen
    if not submitted:
        prepare_environment()
        _show_source()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    builder = SparkSession.builder.appName(app_name)
    chosen = dict(SETTINGS)
    if master is None and not submitted:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            chosen |= LOCAL_SETTINGS
            os.environ.setdefault("SPARK_LOCAL_IP", LOCAL_SETTINGS["spark.driver.host"])
    for name, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _show_source() -> None:
    """Spark lists the modules on its workers' path to find sources; a checkout (an editable install) is not on it."""
    found = find_spec("pyspark_thermocline")
    if found is None or found.origin is None:
        return
    root = os.path.dirname(os.path.dirname(found.origin))
    if root not in {*site.getsitepackages(), site.getusersitepackages()}:
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *(path for path in known if path and path != root)])
