"""docs/configuration.md: every config, from the definitions that validate it.

Owns the page's order and its words about configs as such; what it says of one comes from `broker.config.api.explain`.
"""

from __future__ import annotations

from itertools import groupby

from broker.config.api.explain import Effect, Explained, Scope, explain_all
from broker.config.kafka.without_effect import IGNORED_BEGINNINGS, REFUSED, TOPIC_REASONS, reason_of
from tests.pages.layout import code, table

_HEAD = """# Configuration

Written by `make pages` from the definitions in `broker/config/`: do not edit it. `thermocline config explain KEY`
explains one config, `thermocline config list` lists all. A commented file to start from:
[packaging/server.properties](../packaging/server.properties).

**Precedence**, the strongest first:

1. a dynamic value of this broker, then of all brokers
2. a flag or `--set KEY=VALUE`
3. the environment (`THERMOCLINE_` and the name in capitals with `_` for `.`: `THERMOCLINE_LOG_RETENTION_MS`)
4. the file of `--config`
5. the default

A topic's own value overrides the broker's config that gives its default. An unknown name is refused with the nearest
known one (exit 2). In files, flags and the environment sizes and times may have units: `64MiB`, `7d`, `1h30m`. Over the
Kafka protocol they are plain numbers, as in Kafka.

**Dynamic configs** change *at run time*. Any Kafka tool sets them, for one broker or for all. They are stored in
the bucket (`cluster.json`), applied at once, and applied at every later start:

```
kafka-configs.sh --bootstrap-server localhost:9092 --alter --entity-type brokers --entity-default \\
  --add-config log.retention.ms=86400000
```
"""


def render() -> str:
    topics, brokers = explain_all(Scope.TOPIC), explain_all(Scope.BROKER)
    honoured = [entry for entry in brokers if entry.effect is Effect.HONOURED]
    kafkas = [entry for entry in honoured if not entry.name.startswith("thermocline.")]
    own = [entry for entry in honoured if entry.name.startswith("thermocline.")]
    return "\n".join(
        (
            _HEAD,
            "## Topics\n\nAll of them change at run time: `thermocline topic alter`, `kafka-configs`.\n",
            table(
                ("config", "type", "default", "valid", "what it does", "default from"),
                [_topic_row(entry) for entry in topics if entry.effect is Effect.HONOURED],
            ),
            "Kafka's other topic configs are accepted without effect:\n",
            table(("config", "because"), [(code(name), reason) for name, reason in sorted(TOPIC_REASONS.items())]),
            "## Brokers: Kafka's names\n",
            table(_BROKER_HEADER, [_broker_row(entry) for entry in kafkas]),
            "## Brokers: Thermocline's own names\n",
            table(_BROKER_HEADER, [_broker_row(entry) for entry in own]),
            _defaults(topics, honoured),
            "## Refused at the start\n\nThermocline does not have the feature that they set (ADR 12).\n",
            table(("config", "because"), [(code(name), reason) for name, reason in sorted(REFUSED.items())]),
            "## Accepted without effect\n\nKafka's files may contain them; a start lists those that are set.\n",
            table(("because", "configs"), _without_effect(brokers)),
        )
    )


_BROKER_HEADER = ("config", "type", "default", "valid", "changes", "what it does")


def _topic_row(entry: Explained) -> tuple[str, ...]:
    takes_from = ", ".join(map(code, entry.takes_from))
    return code(entry.name), entry.type, code(entry.default), entry.valid, entry.doc, takes_from


def _broker_row(entry: Explained) -> tuple[str, ...]:
    return code(entry.name), entry.type, code(entry.default), entry.valid, entry.changes, entry.doc


def _defaults(topics: list[Explained], brokers: list[Explained]) -> str:
    rows = [
        (code(entry.name), entry.scope.value, code(entry.default), entry.reason)
        for entry in (*topics, *brokers)
        if entry.reason
    ]
    return "## Defaults that are not Kafka's\n\n" + table(("config", "of", "default", "because"), rows)


def _without_effect(brokers: list[Explained]) -> list[tuple[str, str]]:
    names = [(reason_of(e.name), e.name) for e in brokers if e.effect is Effect.NONE]
    names += [(reason_of(beginning), f"{beginning}*") for beginning in IGNORED_BEGINNINGS]
    return [
        (reason, ", ".join(code(name) for _, name in group))
        for reason, group in groupby(sorted(names), key=lambda pair: pair[0])
    ]
