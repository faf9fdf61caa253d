"""Rows of authorization: the same broker with 10 000 ACLs, beside itself without an authorizer."""

from __future__ import annotations

from functools import partial
from typing import Final

from bench import loads
from bench.rows.produce import SHAPES
from bench.sides import Side, Thermocline
from bench.stage import PAGED, Stage
from bench.table import Floor, Measured, Row
from broker.config.authorizer import ALLOWS_WITHOUT_ACLS, CLASS_NAME, STANDARD_AUTHORIZER
from broker.metadata.records import Acl
from broker.net.dispatch import ANONYMOUS
from broker.security.authorizer.kinds import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from thermocline.cli.acl.requests import create as create_acls

ACLS: Final = 10_000
_ACLS_A_REQUEST: Final = 2_000


def _acls() -> list[Acl]:
    """Of a hundred users and as many prefixes as literals; the load generator's own right is the last."""
    found = [
        Acl(
            ResourceType.TOPIC,
            f"orders-{number // 2}",
            PatternType.PREFIXED if number % 2 else PatternType.LITERAL,
            f"User:service-{number % 100}",
            "*",
            Operation.WRITE,
            Permission.ALLOW,
        )
        for number in range(ACLS - 2)
    ]
    every = (ANONYMOUS, "*", Operation.ALL, Permission.ALLOW)
    found.append(Acl(ResourceType.TOPIC, "*", PatternType.LITERAL, *every))
    found.append(Acl(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, *every))
    return found


def produce_with_acls(shape: str, stage: Stage) -> list[Row]:
    """The peer is ours without an authorizer."""
    plain = stage.paged
    # Until there are ACLs everybody may make them; from then on the authorizer decides by them.
    settings = {**PAGED, CLASS_NAME: STANDARD_AUTHORIZER, ALLOWS_WITHOUT_ACLS: "true"}
    guarded = stage.sides.enter_context(
        Thermocline(stage.root, "acls", settings=settings, python=stage.python).running()
    )
    acls = _acls()[::-1]  # own rights first
    for start in range(0, len(acls), _ACLS_A_REQUEST):
        create_acls(guarded.address, acls[start : start + _ACLS_A_REQUEST])
    batch, connections, record, _, _, seconds, warm, nbytes = SHAPES[shape]
    work = f"produce {batch:,} B × {connections} with {ACLS:,} ACLs; the peer is ours without an authorizer (flush=os)"
    row = Row(f"produce-{shape}-acls", work, "requests/s", Floor(0.95))

    def run(side: Side) -> Measured:
        def load(topic: str) -> Measured:
            return Measured.requests(loads.produce(side, topic, connections, batch, record, seconds=seconds, warm=warm))

        return stage.writing(side, row.name, connections, load, nbytes)

    return stage.compare(row, lambda: run(plain), lambda: run(guarded))


BENCHMARKS: Final = {"produce-1kb-acls": partial(produce_with_acls, "1kb")}
