"""A bucket that a newer version wrote to: whoever repairs or judges it says so, and calls nothing of it damaged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest

from broker.metadata.cluster_content import CLUSTER_FORMAT
from broker.metadata.rebuild_root import write_rebuilt
from coldstore.keys import CLUSTER_KEY, manifest_key
from coldstore.manifest.manifest import new_manifest
from coldstore.manifest.manifest_format import MANIFEST_FORMAT
from coldstore.roots.root import RootCodec
from logformat.values import NewerFormat
from thermocline.cli.bucket.reading import opened
from thermocline.cli.cluster.restore.rebuild_plan import Found, rebuild_plan
from thermocline.cli.main import main
from thermocline.cli.terminal.outcome import Exit
from thermocline.pipeline.history import History

A, B = UUID(int=1), UUID(int=2)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Two topics of a partition each, and the `cluster.json` that a rebuild makes of them."""

    async def fill() -> None:
        async with opened(f"file://{tmp_path}") as at:
            found = [Found(topic_id, 0, new_manifest(topic_id, 0, 3, f"log-{topic_id.int}", {})) for topic_id in (A, B)]
            for one in found:
                data = RootCodec(type(one.manifest)).encode(1, 3, ((1, "a" * 32),), one.manifest)
                await at.store.put_root(manifest_key(one.topic_id, 0), data, None)
            await write_rebuilt(
                at.store, at.world.rng, "clusterid12345678901ab", rebuild_plan(found, {}, 0).image(), 7, None
            )

    asyncio.run(fill())
    return tmp_path


ROOT, MANIFESTS = "cluster.json", "manifests"


def make_newer(path: Path) -> None:
    """One format ahead of what this version knows, as a newer one would write it."""
    known = CLUSTER_FORMAT if path.name == CLUSTER_KEY else MANIFEST_FORMAT
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format_version": known.version + 1}))


def contents(bucket: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in bucket.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("verb", "newer"),
    [
        (["rebuild", "--yes"], ROOT),
        (["rebuild", "--done"], ROOT),
        (["restore", "--yes"], ROOT),
        (["rebuild", "--yes"], MANIFESTS),
        (["restore", "--yes"], MANIFESTS),
    ],
)
def test_a_newer_format_is_refused_and_never_rebuilt_over(
    bucket: Path, verb: list[str], newer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cluster rebuild` overwrote a healthy `cluster.json` of a newer version, as `restore` had advised; manifests of
    one were called damaged."""
    if newer == ROOT:
        make_newer(bucket / CLUSTER_KEY)
    else:
        for topic_id in (A, B):
            make_newer(bucket / manifest_key(topic_id, 0))
        if verb[0] == "rebuild":
            (bucket / CLUSTER_KEY).unlink()
    before = contents(bucket)
    code = main(["cluster", *verb, "--bucket", f"file://{bucket}"])
    said = capsys.readouterr()
    assert contents(bucket) == before
    assert code == Exit.REFUSED and "upgrade" in said.err, said.err
    assert not any(word in said.err + said.out for word in ("damaged", "cannot be read", "cluster rebuild"))


def test_topics_of_a_newer_format_do_not_vanish_for_jobs_where_the_root_is_lost(bucket: Path) -> None:
    make_newer(bucket / manifest_key(B, 0))
    (bucket / CLUSTER_KEY).unlink()
    with History.open(f"file://{bucket}") as history, pytest.raises(NewerFormat, match="upgrade"):
        history.topics()
