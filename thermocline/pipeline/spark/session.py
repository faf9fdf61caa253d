"""A Spark session with the settings for this source, on this machine or any master.

The caller's settings win. An existing session is returned unchanged, because Spark has one session per process.
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

# A Python task costs 16 ms over a Unix socket, 45 ms over TCP. Spark pushes filters to a Python source only on request.
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
    """The running session, or a new one on `master` (None: the master of spark-submit, otherwise all local cores).

    Finds a Java first. `settings` have Spark's names and override all others.
    """
    require("spark", "a Spark session", "pyspark")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # under spark-submit: Java and master are given
    if not submitted:
        prepare_environment()
        _add_source_to_path()
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


def _add_source_to_path() -> None:
    """Put a checkout (an editable install) on the workers' path, where Spark looks for sources."""
    found = find_spec("pyspark_thermocline")
    if found is None or found.origin is None:
        return
    root = os.path.dirname(os.path.dirname(found.origin))
    if root not in {*site.getsitepackages(), site.getusersitepackages()}:
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *(path for path in known if path and path != root)])
