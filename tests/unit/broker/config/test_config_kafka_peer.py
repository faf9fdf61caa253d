"""The generated table of Kafka's config names, and our validator, against Apache Kafka 4.3.1 itself (needs Java).

`python -m tests.unit.broker.config.test_config_kafka_peer LIBS_DIR` prints the table; the jars come with bench/peers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka.kafka_tools import class_path, require_kafka

# A line for each name (scope, name, type, default, validator, internal), each topic name with synonyms, and each
# case read from stdin: OK, or why LogConfig refuses it. One with a node.id is a broker's, for KafkaConfig.
PROGRAM = r"""
import java.util.*;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.*;
import org.apache.kafka.storage.internals.log.LogConfig;
public class Ask {
  static void dump(String scope, ConfigDef def) {
    for (ConfigDef.ConfigKey k : new TreeMap<>(def.configKeys()).values()) {
      String d = !k.hasDefault() || k.defaultValue == null ? "\\N" : ConfigDef.convertToString(k.defaultValue, k.type);
      String v = k.validator == null ? "" : k.validator.toString();
      System.out.println(String.join("\t", scope, k.name, k.type.name(), d, v, String.valueOf(k.internalConfig)));
    }
  }
  public static void main(String[] arguments) throws Exception {
    dump("broker", kafka.server.KafkaConfig$.MODULE$.configDef());
    dump("dynamic", QuotaConfig.brokerQuotaConfigs());
    dump("topic", LogConfig.configDefCopy());
    for (var e : new TreeMap<>(ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS).entrySet()) {
      StringBuilder names = new StringBuilder();
      for (ConfigSynonym c : e.getValue()) names.append(c.name() + ":" + c.converter().apply("2") + " ");
      System.out.println("synonym\t" + e.getKey() + "\t" + names.toString().trim());
    }
    Scanner cases = new Scanner(System.in);
    while (cases.hasNextLine()) {
      Map<String, String> configs = new HashMap<>();
      for (String pair : cases.nextLine().split(" ")) {
        int at = pair.indexOf('=');
        if (at > 0) configs.put(pair.substring(0, at), pair.substring(at + 1));
      }
      String answer = "OK";
      if (configs.containsKey("node.id")) {
        Properties all = new Properties();
        all.putAll(configs);
        try { kafka.server.KafkaConfig.fromProps(all, false); }
        catch (Exception e) { answer = e.getMessage(); }
      } else try { LogConfig.validate(Map.of(), configs, Map.of("preallocate", "false"), true); }
      catch (Exception e) { answer = e.getMessage(); }
      System.out.println("case\t" + answer);
    }
  }
}
"""


BROKER = (
    "node.id=1 process.roles=broker log.dirs=/d controller.listener.names=CONTROLLER "
    "controller.quorum.voters=2@localhost:9999 "
)


def ask(libs: str, folder: Path, cases: list[str]) -> list[list[str]]:
    """What Kafka's own classes print, as split lines."""
    source = folder / "Ask.java"
    source.write_text(PROGRAM)
    done = subprocess.run(
        ["java", "-cp", libs, str(source)],
        input="\n".join(cases),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return [line.split("\t") for line in done.stdout.splitlines()]


def limits(validator: str) -> str:
    """Kafka's way to print a validator, in the table's notation."""
    if validator.startswith("non-empty"):
        return "filled"
    if validator.startswith("[partitionId]"):
        return "replicas"
    if found := re.fullmatch(
        r"\[(-?[\d.]+),\.\.\.(?:,(-?[\d.]+))?\](?: or (-?\d+))?", validator.replace("...]", "...]")
    ):
        low, high, also = found.groups()
        return (f"{also}," if also else "") + f"{low}..{high or ''}"
    if found := re.fullmatch(r"(\(case insensitive\) )?\[(.+)\]", validator):
        return ("~" if found[1] else "") + "/".join(found[2].split(", "))
    return ""


def tables(lines: list[list[str]]) -> dict[str, list[str]]:
    """The four tables of broker/config/kafka/kafka_names.py, as lines."""
    made: dict[str, list[str]] = {"broker": [], "dynamic": [], "topic": [], "synonym": []}
    for kind, *columns in lines:
        if kind == "synonym":
            scaled = ((name, int(two) // 2) for name, two in (pair.split(":") for pair in columns[1].split()))
            made[kind].append(f"{columns[0]} = " + " ".join(n if f == 1 else f"{n}*{f}" for n, f in scaled))
        elif kind != "case":
            name, type_name, default, validator, internal = columns
            flag = "|internal" if internal == "true" else ""
            made[kind].append(f"{name}|{type_name}|{default}|{limits(validator)}{flag}")
    return made


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    require_kafka()
    from tests.unit.broker.config.test_config_listeners import KAFKAS
    from tests.unit.broker.config.test_config_topics import ACCEPTED, REFUSED

    brokers = [BROKER + " ".join(lines) for lines, _ in KAFKAS]
    return ask(class_path(), tmp_path_factory.mktemp("ask"), [*ACCEPTED, *REFUSED, *brokers])


@pytest.mark.peer
def test_the_generated_table_is_what_kafka_says(answers: list[list[str]]) -> None:
    """Every name, type, default, limit and synonym of Kafka 4.3.1, nothing more."""
    from broker.config.kafka import kafka_names

    made = tables(answers)
    assert made["broker"] == kafka_names.BROKER.strip().splitlines()
    assert made["dynamic"] == kafka_names.DYNAMIC.strip().splitlines()
    assert made["topic"] == kafka_names.TOPIC.strip().splitlines()
    assert made["synonym"] == kafka_names.SYNONYMS.strip().splitlines()


@pytest.mark.peer
def test_kafka_judges_our_cases_as_we_do(answers: list[list[str]]) -> None:
    """The lists of accepted and refused topic configs are Kafka's own answers."""
    from tests.unit.broker.config.test_config_topics import ACCEPTED, REFUSED

    given = [columns[1] for columns in answers if columns[0] == "case"]
    accepted, refused = given[: len(ACCEPTED)], given[len(ACCEPTED) : len(ACCEPTED) + len(REFUSED)]
    assert [case for case, answer in zip(ACCEPTED, accepted, strict=True) if answer != "OK"] == []
    assert [case for case, answer in zip(REFUSED, refused, strict=True) if answer == "OK"] == []


@pytest.mark.peer
def test_kafka_refuses_listeners_in_the_words_we_use(answers: list[list[str]]) -> None:
    """What is called Kafka's in test_config_listeners is."""
    from tests.unit.broker.config.test_config_listeners import KAFKAS

    given = [columns[1] for columns in answers if columns[0] == "case"][-len(KAFKAS) :]
    differing = [(words, said) for (_, words), said in zip(KAFKAS, given, strict=True) if words not in said]
    assert differing == []


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        for title, rows in tables(ask(f"{sys.argv[1]}/*", Path(temporary), [])).items():
            print(f"# {title}", *rows, sep="\n")
