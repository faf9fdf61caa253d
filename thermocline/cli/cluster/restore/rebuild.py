"""`thermocline cluster rebuild`: rebuilds a lost or unreadable `cluster.json` from the manifests.

A `cluster.json` is never replaced if this or a newer version can read it, or if the cluster's lease is still bumped. A
topic without a known name stops the rebuild until a person names it. `--done` ends the protection against deletions.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_client_config, add_json
from thermocline.cli.terminal.confirm import can_ask, confirm
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import Cell, ProgressLine, json_line, note, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from thermocline.cli.bucket.reading import Bucket
    from thermocline.cli.cluster.restore.rebuild_plan import Found, Names, RebuildPlan
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(verbs: Subparsers[Parser]) -> None:
    rebuild = verbs.add_parser(
        "rebuild",
        help="create a lost cluster.json again from the manifests",
        description="For a bucket whose cluster.json is gone or damaged, and that keeps no earlier version of it. "
        "Stop every broker first. It prints the topics that the manifests name and the facts that they "
        "lack, then asks. Afterwards: start every broker that has its directory, then `thermocline "
        "cluster restore`; check that all is there; then --done. Until then nothing is deleted from the "
        "bucket. The command is refused if cluster.json can be read, or if a broker still renews its lease.",
        example="thermocline cluster rebuild --bucket s3://my-bucket/log --names names.json\n"
        "thermocline cluster rebuild --bucket s3://my-bucket/log --done",
    )
    rebuild.add_argument("--bucket", required=True, metavar="URL", help="the bucket of the cluster")
    rebuild.add_argument(
        "--names",
        metavar="FILE",
        help="JSON: names of topics by id, or null to leave a topic out; for topics whose name is not in the bucket",
    )
    rebuild.add_argument(
        "--cluster-id",
        metavar="ID",
        help="the cluster.id in meta.properties of any broker's directory (default: that of lease.json)",
    )
    rebuild.add_argument("--yes", action="store_true", help="rebuild without asking")
    rebuild.add_argument("--done", action="store_true", help="everything is back: pending deletions may continue")
    rebuild.add_argument("-b", "--bootstrap-server", metavar="HOST:PORT", help="with --done: a broker of the cluster")
    add_client_config(rebuild)
    add_json(rebuild)
    rebuild.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from thermocline.cli.bucket.reading import with_bucket

    work = _done if arguments.done else _rebuild
    return with_bucket(arguments.bucket, lambda bucket: work(bucket, arguments))


async def _rebuild(bucket: Bucket, arguments: argparse.Namespace) -> int:
    from broker.metadata.rebuild_root import write_rebuilt
    from coldstore.object_store import PreconditionFailed
    from thermocline.cli.cluster.restore.rebuild_lease import read_lease, release, wait_until_still
    from thermocline.cli.cluster.restore.rebuild_plan import rebuild_plan

    names = _names(arguments.names)
    damaged = await _check_lost(bucket)
    lease = await read_lease(bucket)
    found, metadata_epoch = await _found(bucket)
    if not found:
        raise CommandFailed(
            f"{bucket.store.url} holds no partition of Thermocline; check the bucket's name and the prefix"
        )
    if unknown := names.keys() - {of.topic_id for of in found}:
        raise CommandFailed(f"{arguments.names}: the bucket has no topic {min(map(str, unknown))}", Exit.USAGE)
    epoch = max(metadata_epoch, 0 if lease is None else lease.content.controller_epoch)
    plan = rebuild_plan(found, names, epoch)
    lease_id = "" if lease is None else lease.content.cluster_id
    cluster_id = arguments.cluster_id or lease_id or _new_id(bucket)
    is_new = not (arguments.cluster_id or lease_id)
    _print_plan(plan, cluster_id, is_new=is_new, as_json=arguments.json)
    if not plan.is_complete:
        raise CommandFailed("name the topics without a unique name with --names FILE (null leaves one out)")
    if not arguments.yes:
        if not can_ask():
            note("nothing was changed: add --yes to write it")
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


async def _check_lost(bucket: Bucket) -> str | None:
    """The ETag of an unreadable `cluster.json`, or None if there is none. Raises CommandFailed when `cluster.json` can
    be read, NewerFormat when a newer version can read it.
    """
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
    except Corrupt:  # an encrypted file; `load` reports the fault
        from coldstore.encryption.encrypted_store import etag_of_damaged

        etag = await etag_of_damaged(bucket.store, CLUSTER_KEY)
    try:
        await ClusterRoot(bucket.store, world.rng, world.clock, world.workers).load()
    except NewerFormat:
        raise
    except Corrupt as damage:
        note(f"cluster.json is there and cannot be read: {damage}")
        return etag
    raise CommandFailed(
        f"{bucket.store.url} has a cluster.json that can be read: there is nothing to rebuild; see `thermocline "
        "cluster restore`",
        Exit.REFUSED,
    )


async def _found(bucket: Bucket) -> tuple[list[Found], int]:
    """Every partition below `topics/`, and the highest controller epoch in the names of metadata pages.
    Raises CommandFailed for a key that no broker writes.
    """
    from coldstore.inspection.audit import partitions_in
    from coldstore.keys import METADATA_PREFIX, TOPICS_PREFIX, MetadataKey, parse_key
    from thermocline.cli.cluster.restore.bucket_state import BucketState
    from thermocline.cli.cluster.restore.rebuild_plan import Found, check_keys, epochs_in

    keys = [info.key async for info in bucket.store.list(TOPICS_PREFIX)]
    pages = [info.key async for info in bucket.store.list(METADATA_PREFIX)]
    check_keys((*keys, *pages))
    places = {(str(topic_id), index): topic_id for topic_id, index in partitions_in(keys)}
    epochs = epochs_in(keys)
    progress = ProgressLine()
    manifests = await BucketState(bucket).manifests(
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
            loaded = json.load(file)
        named = {UUID(topic_id): name for topic_id, name in loaded.items()}
    except (ValueError, AttributeError) as broken:
        raise CommandFailed(f'{path}: write {{"TOPIC-ID": "NAME", …}}: {broken}', Exit.USAGE) from broken
    for topic_id, name in named.items():
        if name is not None and not (isinstance(name, str) and is_topic_name(name)):
            raise CommandFailed(f"{path}: {topic_id} cannot be called {name!r}", Exit.USAGE)
    return named


def _new_id(bucket: Bucket) -> str:
    from logformat.values import uuid_text

    return uuid_text(bucket.world.rng.uuid().bytes)


async def _done(bucket: Bucket, arguments: argparse.Namespace) -> int:
    import asyncio

    from broker.metadata.rebuilt import UNKNOWN_REPLICA, is_rebuilt
    from thermocline.cli.cluster.restore.bucket_state import BucketState
    from thermocline.cli.cluster.restore.executor import LiveBrokers

    there = LiveBrokers(arguments.bootstrap_server)
    snapshot = await BucketState(bucket).read()
    if not is_rebuilt(snapshot.image):
        note("no deletion is held back: this cluster was not rebuilt, or --done was given before")
        return Exit.DONE
    held = [one for one in snapshot.partitions if UNKNOWN_REPLICA in (*one.replicas, *(one.target or ()))]
    if held:
        raise CommandFailed(
            f"{len(held)} partitions do not serve yet, {held[0].topic}-{held[0].partition} among them: run "
            f"`thermocline cluster restore` first; where a partition cannot be restored, delete its topic"
        )
    await asyncio.to_thread(there.check, snapshot)
    addresses = await there.answering(snapshot)
    if not addresses:
        raise CommandFailed("no broker of this cluster answers")
    await there.give_up(addresses, UNKNOWN_REPLICA)
    note("done: deleted topics and their objects are removed from now on")
    return Exit.DONE


def _print_plan(plan: RebuildPlan, cluster_id: str, *, is_new: bool, as_json: bool) -> None:
    """Print the plan to stdout, as a table or as one JSON object per line. `is_new`: the cluster gets a new id."""
    if as_json:
        print(json_line({"kind": "cluster", "cluster_id": cluster_id, "is_new_id": is_new, "epoch": plan.epoch}))
        for of in plan.topics:
            row: dict[str, Cell] = {"kind": "topic", "topic_id": str(of.topic_id), "topic": of.name}
            print(
                json_line(
                    {**row, "partitions": of.partitions, "damaged": list(of.damaged), "missing": list(of.missing)}
                )
            )
        for topic_id in plan.unnamed:
            print(json_line({"kind": "unnamed", "topic_id": str(topic_id)}))
        for name, ids in plan.twice.items():
            print(json_line({"kind": "twice", "topic": name, "topic_ids": [str(one) for one in ids]}))
        for topic_id in plan.left_out:
            print(json_line({"kind": "left_out", "topic_id": str(topic_id)}))
        for what in _unknown(plan, is_new=is_new):
            print(json_line({"kind": "note", "what": what}))
        return
    print(f"cluster {cluster_id}; epochs continue at {plan.epoch}")
    rows = [
        (of.name, str(of.topic_id), str(of.partitions), _indexes(sorted(of.damaged)), _indexes(of.missing))
        for of in plan.topics
    ]
    print(table(("topic", "id", "partitions", "damaged", "missing"), rows, right=("partitions",)))
    for topic_id in plan.unnamed:
        print(f"{topic_id} has no manifest that can be read, so its name is unknown")
    for name, ids in plan.twice.items():
        print(f"{name} is the name of several topics, deleted ones perhaps: {', '.join(map(str, ids))}")
    for topic_id in plan.left_out:
        print(f"{topic_id} is left out; its objects stay in the bucket")
    for what in _unknown(plan, is_new=is_new):
        print(f"note: {what}")


def _unknown(plan: RebuildPlan, *, is_new: bool) -> Sequence[str]:
    """Print the facts that the bucket does not contain."""
    found = [
        "configs of brokers and of the cluster are not in the bucket: set them again (kafka-configs.sh)",
        "a topic that was being deleted is back: delete it again",
    ]
    if any(of.configs_differ for of in plan.topics):
        found.append(
            "configs of some topics differ between their partitions, because they were being changed: check them"
        )
    if is_new:
        found.append(
            "the id of the cluster is a new one: brokers refuse to start on directories of the old one; "
            "give the old id with --cluster-id"
        )
    if any(of.missing for of in plan.topics):
        found.append("partitions without data in the bucket begin empty")
    return found


def _indexes(found: Sequence[int]) -> str:
    return ",".join(map(str, found)) or "-"
