"""The table of Kafka's requests in docs/compatibility.md against Apache Kafka 4.3.1's own classes (needs Java)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.pages.kafka_apis import TABLE, KafkaApi
from tests.support.kafka.kafka_tools import class_path, require_kafka

PROGRAM = """
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiKeys;
public class Requests {
  public static void main(String[] arguments) {
    for (ApiKeys k : ApiKeys.apisForListener(ApiMessageType.ListenerType.BROKER))
      System.out.println(k.id + "|" + k.name + "|" + k.oldestVersion() + "|" + k.latestVersion(false));
  }
}
"""


@pytest.mark.peer
def test_the_table_of_requests_is_kafkas(tmp_path: Path) -> None:
    """Every request of the broker listener, with its stable versions."""
    require_kafka()
    source = tmp_path / "Requests.java"
    source.write_text(PROGRAM)
    done = subprocess.run(
        ["java", "-cp", class_path(), str(source)], capture_output=True, text=True, timeout=100, check=True
    )
    told = (line.split("|") for line in done.stdout.splitlines())
    assert sorted(KafkaApi(int(key), name, int(low), int(high)) for key, name, low, high in told) == sorted(TABLE)
