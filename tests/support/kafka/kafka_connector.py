"""Spark's stock Kafka connector: its four jars from Maven Central, in this user's cache, checked by their SHA-1 files.

The versions are those that work with PySpark 4.3 (their POMs do not resolve, and there is no 4.3.0 of them).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

CENTRAL = "https://repo1.maven.org/maven2"
JARS = (
    "org/apache/spark/spark-sql-kafka-0-10_2.13/4.2.0/spark-sql-kafka-0-10_2.13-4.2.0.jar",
    "org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.0.0/spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
    "org/apache/kafka/kafka-clients/3.9.2/kafka-clients-3.9.2.jar",
    "org/apache/commons/commons-pool2/2.12.0/commons-pool2-2.12.0.jar",
)
DOWNLOAD_S = 60


def connector_jars() -> str:
    """What belongs into `spark.jars`; the test is skipped where they are neither here nor reachable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thermocline-test" / "jars"
    cache.mkdir(parents=True, exist_ok=True)
    places = [cache / jar.rpartition("/")[2] for jar in JARS]
    try:
        for jar, place in zip(JARS, places, strict=True):
            if not place.exists():
                _download(f"{CENTRAL}/{jar}", place)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        pytest.skip(f"Spark's Kafka connector is not in {cache} and Maven Central is out of reach: {error}")
    return ",".join(str(place) for place in places)


def _download(url: str, place: Path) -> None:
    with urllib.request.urlopen(url, timeout=DOWNLOAD_S) as answer:
        data = answer.read()
    with urllib.request.urlopen(f"{url}.sha1", timeout=DOWNLOAD_S) as answer:
        expected = answer.read().decode().split()[0]
    assert hashlib.sha1(data).hexdigest() == expected, f"{url} is not what Maven Central says it is"
    handle, temporary = tempfile.mkstemp(dir=place.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(temporary, place)
