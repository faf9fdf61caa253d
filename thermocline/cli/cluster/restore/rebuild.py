"""`thermocline cluster rebuild`: `cluster.json` is lost, or cannot be read; the manifests say what there was.

Owns the order, the refusals, and the word that ends it. Always true: a `cluster.json` that this or a newer version can
read is never replaced, nor one of a cluster whose lease moves (rebuild_lease); what the bucket cannot tell is named
(rebuild_shown); a topic that nobody can name stops it until a person does. Must not know what the image holds
(rebuild_plan), nor how it is written (rebuild_root).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_json
from thermocline.cli.terminal.confirm import can_ask, confirm
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import ProgressLine, note

if TYPE_CHECKING:
    from thermocline.cli.bucket.reading import Bucket
    from thermocline.cli.cluster.restore.rebuild_plan import Found, Names
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(verbs: Subparsers[Parser]) -> None:
    """Add the verb."""
    rebuild = verbs.add_parser(
        "rebuild",
        help="make a lost cluster.json anew from the manifests",
        description="For a bucket whose cluster.json is gone or damaged, and that keeps no earlier version of it. Stop "
        "every broker first. It prints the topics that the manifests name, and what they cannot tell, and asks. "
        "Afterwards: start every broker that has its directory, then `thermocline cluster restore`; check that all is "
        "there; then --done. Until then nothing is deleted from the bucket. Refused where cluster.json can be read, or "
        "a broker still bumps its lease.",
        example="thermocline cluster rebuild --bucket s3://my-bucket/log --names names.json\n"
        "thermocline cluster rebuild --bucket s3://my-bucket/log --done",
    )
    rebuild.add_argument("--bucket", required=True, metavar="URL", help="the bucket of the cluster")
    rebuild.add_argument(
        "--names",
        metavar="FILE",
        help="JSON: the name of a topic by its id, or null to leave it out; for those that cannot be told",
    )
    rebuild.add_argument(
        "--cluster-id",
        metavar="ID",
        help="as cluster.id in meta.properties of any broker's directory says it (default: as lease.json does)",
    )
    rebuild.add_argument("--yes", action="store_true", help="do it, without asking")
    rebuild.add_argument("--done", action="store_true", help="all is there: what is to be deleted may be deleted again")
    rebuild.add_argument("-b", "--bootstrap-server", metavar="HOST:PORT", help="with --done: a broker of the cluster")
    add_json(rebuild)
    rebuild.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show, ask, write; or take the word that ends it."""
    from thermocline.cli.bucket.reading import with_bucket

    work = _done if arguments.done else _rebuild
    return with_bucket(arguments.bucket, lambda bucket: work(bucket, arguments))


async def _rebuild(bucket: Bucket, arguments: argparse.Namespace) -> int:
    from broker.metadata.rebuild_root import write_rebuilt
    from coldstore.object_store import PreconditionFailed
    from thermocline.cli.cluster.restore.rebuild_lease import read_lease, release, wait_until_still
    from thermocline.cli.cluster.restore.rebuild_plan import rebuild_plan
    from thermocline.cli.cluster.restore.rebuild_shown import show

    names = _names(arguments.names)
    damaged = await _check_lost(bucket)
    lease = await read_lease(bucket)
    found, metadata_epoch = await _found(bucket)
    if not found:
        raise CommandFailed(f"{bucket.store.url} holds no partition of Thermocline's; is it the whole URL?")
    if unknown := names.keys() - {of.topic_id for of in found}:
        raise CommandFailed(f"{arguments.names}: the bucket has no topic {min(map(str, unknown))}", Exit.USAGE)
    epoch = max(metadata_epoch, 0 if lease is None else lease.content.controller_epoch)
    plan = rebuild_plan(found, names, epoch)
    told = "" if lease is None else lease.content.cluster_id
    cluster_id = arguments.cluster_id or told or _new_id(bucket)
    is_new = not (arguments.cluster_id or told)
    show(plan, cluster_id, is_new=is_new, as_json=arguments.json)
    if not plan.is_complete:
        raise CommandFailed(
            "say with --names FILE what the topics without a name of their own are called (null: leave out)"
        )
    if not arguments.yes:
        if not can_ask():
            note("nothing was changed: --yes does it")
            return Exit.DONE
        confirm(f"Write a new cluster.json of {len(plan.topics)} topics to {bucket.store.url}?", cluster_id)
    await wait_until_still(bucket)
    try:
        await write_rebuilt(bucket.store, bucket.world.rng, cluster_id, plan.image(), plan.epoch, damaged)
    except PreconditionFailed as refused:
        raise CommandFailed(f"cluster.json was written meanwhile: {refused}", Exit.REFUSED) from refused
    await release(bucket, plan.epoch, cluster_id)
    note(
        f"cluster {cluster_id} is rebuilt. Start every broker that has its directory, then: "
        f"thermocline cluster restore --bucket {bucket.store.url}"
    )
    return Exit.DONE


# ── what there is ────────────────────────────────────────────────────────────────────────────────────────────────────
async def _check_lost(bucket: Bucket) -> str | None:
    """The ETag of a `cluster.json` that cannot be read; None where there is none. CommandFailed where it can;
    NewerFormat where a newer version can."""
    from broker.metadata.cluster_root import ClusterRoot
    from coldstore.keys import CLUSTER_KEY
    from coldstore.object_store import ObjectMissing
    from logformat.errors import Corrupt
    from logformat.values import NewerFormat

    world = bucket.world
    try:
        etag = (await bucket.store.head(CLUSTER_KEY)).etag
    except ObjectMissing:
        return None
    try:
        await ClusterRoot(bucket.store, world.rng, world.clock, world.workers).load()
    except NewerFormat:
        raise
    except Corrupt as damage:
        note(f"cluster.json is there and cannot be read: {damage}")
        return etag
    raise CommandFailed(
        f"{bucket.store.url} has a cluster.json that can be read: nothing is to be rebuilt; see `thermocline cluster "
        "restore`",
        Exit.REFUSED,
    )


async def _found(bucket: Bucket) -> tuple[list[Found], int]:
    """Every partition below `topics/`; the highest controller epoch in names of metadata pages. CommandFailed for a key
    that no broker makes."""
    from coldstore.inspection.audit import partitions_in
    from coldstore.keys import METADATA_PREFIX, TOPICS_PREFIX, MetadataKey, parse_key
    from thermocline.cli.cluster.restore.rebuild_plan import Found, check_keys, epochs_in
    from thermocline.cli.cluster.restore.source import RestoreSource

    keys = [info.key async for info in bucket.store.list(TOPICS_PREFIX)]
    pages = [info.key async for info in bucket.store.list(METADATA_PREFIX)]
    check_keys((*keys, *pages))
    places = {(str(topic_id), index): topic_id for topic_id, index in partitions_in(keys)}
    epochs = epochs_in(keys)
    progress = ProgressLine()
    manifests = await RestoreSource(bucket).manifests(
        places, lambda read: progress.show(f"{read} of {len(places)} manifests")
    )
    progress.done()
    found = [
        Found(topic_id, place[1], manifests[place], epochs.get((topic_id, place[1]), 0))
        for place, topic_id in places.items()
    ]
    parsed = map(parse_key, pages)
    return found, max((key.epoch for key in parsed if isinstance(key, MetadataKey)), default=0)


def _names(path: str | None) -> Names:
    if path is None:
        return {}
    import json
    from uuid import UUID

    from logformat.values import is_topic_name

    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
        named = {UUID(topic_id): name for topic_id, name in said.items()}
    except (ValueError, AttributeError) as broken:
        raise CommandFailed(f'{path}: write {{"TOPIC-ID": "NAME", …}}: {broken}', Exit.USAGE) from broken
    for topic_id, name in named.items():
        if name is not None and not (isinstance(name, str) and is_topic_name(name)):
            raise CommandFailed(f"{path}: {topic_id} cannot be called {name!r}", Exit.USAGE)
    return named


def _new_id(bucket: Bucket) -> str:
    from logformat.values import uuid_text

    return uuid_text(bucket.world.rng.uuid().bytes)


# ── the end of it ────────────────────────────────────────────────────────────────────────────────────────────────────
async def _done(bucket: Bucket, arguments: argparse.Namespace) -> int:
    import asyncio

    from broker.metadata.rebuilt import UNKNOWN_REPLICA, is_rebuilt
    from thermocline.cli.cluster.restore.drive import BrokersThere
    from thermocline.cli.cluster.restore.source import RestoreSource

    there = BrokersThere(arguments.bootstrap_server)
    look = await RestoreSource(bucket).look()
    if not is_rebuilt(look.image):
        note("nothing is held back: this cluster was not rebuilt, or that is done")
        return Exit.DONE
    held = [one for one in look.partitions if UNKNOWN_REPLICA in (*one.replicas, *(one.target or ()))]
    if held:
        raise CommandFailed(
            f"{len(held)} partitions do not serve yet, {held[0].topic}-{held[0].partition} among them: `thermocline "
            "cluster restore` first; what cannot be restored is deleted with its topic"
        )
    await asyncio.to_thread(there.check, look)
    addresses = await there.answering(look)
    if not addresses:
        raise CommandFailed("no broker of this cluster answers")
    await there.give_up(addresses, UNKNOWN_REPLICA)
    note("done: what is to be deleted is deleted from now on")
    return Exit.DONE
