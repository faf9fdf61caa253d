"""`bucket probe`, `bucket verify`, `bucket gc`: output and exit codes. The checks are in coldstore (probe, audit).

Exit 3 for a store that cannot hold a log, 5 for damage.
"""

from __future__ import annotations

from coldstore.inspection.audit import FindingKind, GcPlan, rootless
from coldstore.inspection.orphan_safety import keep_by_manifest
from coldstore.inspection.probe import probe, race
from thermocline.cli.bucket.reading import Bucket, with_bucket
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import ProgressLine, json_line, note
from thermocline.findings import Located
from thermocline.units import show_size


def probe_store(url: str, *, with_race: bool) -> int:
    """Print each condition with pass or fail, and how copies will be verified. Exit 3 when the store cannot hold a
    log.
    """

    async def run(bucket: Bucket) -> int:
        report = await probe(bucket.store, bucket.world.rng)
        print(f"{report.provider} at {report.url}")
        for finding in report.findings:
            print(f"{'pass' if finding.passed else 'FAIL'}  {finding.condition.value}{_because(finding.detail)}")
        passed = report.passed
        if with_race:
            raced = await race(bucket.store, bucket.world.rng)
            winners = ", ".join(map(str, raced.winners))
            print(f"{'pass' if raced.passed else 'FAIL'}  racing writers have one winner (winners a round: {winners})")
            passed = passed and raced.passed
        print(f"copies will be verified by {report.verification.value}")
        if not passed:
            note(
                "this store cannot hold a log: two brokers would overwrite each other's manifests, or bytes would be "
                "lost"
            )
        return Exit.DONE if passed else Exit.REFUSED

    return with_bucket(url, run)


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def verify(url: str, topic: str | None, *, deep: bool, as_json: bool) -> int:
    """Print every finding; exit 5 when one is damage."""

    async def run(bucket: Bucket) -> int:
        progress = ProgressLine()
        damage = others = 0
        partitions = await bucket.partitions(topic)
        if not partitions and (topic is not None or not await bucket.is_ours()):
            what = f"no topic {topic}" if topic is not None else "no objects of Thermocline"
            raise CommandFailed(f"{bucket.store.url} holds {what}: nothing was verified")
        for finding in await bucket.verify_metadata() if topic is None else ():
            damage += finding.kind.is_damage
            others += not finding.kind.is_damage
            _print_finding(Located(finding), as_json=as_json)
        for number, (topic_id, index, name) in enumerate(partitions):
            progress.show(f"{number} of {len(partitions)} partitions: {name or topic_id}-{index}")
            findings = await bucket.inspector.verify(topic_id, index, deep=deep)
            if name is None and not any(finding.kind is FindingKind.UNREADABLE for finding in findings):
                findings += rootless(findings)
            progress.done()
            for finding in findings:
                damage += finding.kind.is_damage
                others += not finding.kind.is_damage
                _print_finding(Located(finding, name, topic_id, index), as_json=as_json)
        if not as_json:
            how = "every byte read" if deep else "every object's size and footer checked"
            harmless = " (no damage)" if others else ""
            print(
                f"{len(partitions)} partitions, {how}: {damage} damaged or missing, {others} other findings{harmless}"
            )
        return Exit.FINDINGS if damage else Exit.DONE

    return with_bucket(url, run)


def _print_finding(located: Located, *, as_json: bool) -> None:
    print(json_line(located.row()) if as_json else located)


def collect(url: str, *, delete: bool, only_copies: bool, as_json: bool) -> int:
    """Print orphans and the action for each. `only_copies`: delete also orphans that may be the only copies of
    records."""
    if only_copies and not delete:
        raise CommandFailed("--delete-only-copies needs --delete", Exit.USAGE)

    async def run(bucket: Bucket) -> int:
        progress = ProgressLine()
        partitions = await bucket.inspector.partitions()
        if not partitions and not await bucket.is_ours():
            raise CommandFailed(
                f"{bucket.store.url} holds no objects of Thermocline; check the bucket's name and the prefix"
            )
        if delete:
            await _check_complete(bucket)
        plans = [await bucket.plan_metadata_gc()]
        for number, (topic_id, index) in enumerate(partitions):
            progress.show(f"{number} of {len(partitions)} partitions")
            plan = await bucket.inspector.plan_gc(topic_id, index)
            plan = await keep_by_manifest(bucket.store, topic_id, index, plan, bucket.world.workers)
            plans.append(plan.with_kept if only_copies else plan)
        progress.done()
        for plan in plans:
            if delete:
                await bucket.inspector.delete(plan)
            _print_plan(plan, deleted=delete, as_json=as_json)
        if not as_json:
            _print_sums(plans, deleted=delete)
        return Exit.DONE

    return with_bucket(url, run)


async def _check_complete(bucket: Bucket) -> None:
    """Raises CommandFailed for a rebuilt cluster (R29) before `cluster rebuild --done`."""
    from broker.metadata.cluster_root import ClusterRoot
    from broker.metadata.rebuilt import is_rebuilt

    world = bucket.world
    found = await ClusterRoot(bucket.store, world.rng, world.clock, world.workers).load()
    if found is not None and is_rebuilt(found.image):
        url = bucket.store.url
        raise CommandFailed(
            f"the cluster of {url} was rebuilt: nothing is deleted before `thermocline cluster rebuild --bucket {url} "
            "--done` confirms that everything is back",
            Exit.REFUSED,
        )


def _print_plan(plan: GcPlan, *, deleted: bool, as_json: bool) -> None:
    sorts = (
        ("deleted" if deleted else "deletable", plan.deletable),
        ("kept", plan.kept),
        ("pending", plan.pending),
        ("unknown", plan.unknown),
    )
    for state, infos in sorts:
        for info in infos:
            if as_json:
                print(json_line({"state": state, "bytes": info.size, "key": info.key}))
            else:
                print(f"{state:9} {info.size:>12} {info.key}")


def _print_sums(plans: list[GcPlan], *, deleted: bool) -> None:
    total = GcPlan((), (), ())
    for plan in plans:
        total += plan
    verb = "deleted" if deleted else "deletable"
    kept = f", {len(total.kept)} kept ({show_size(total.kept_bytes)})" if total.kept else ""
    gone = f"{len(total.deletable)} objects {verb} ({show_size(total.deletable_bytes)})"
    print(f"{gone}{kept}, {len(total.pending)} pending")
    if total.kept:
        print(
            "kept: they may be the only copies of records. A broker that leads the partition deletes them "
            "when its log has the records; --delete --delete-only-copies deletes them now"
        )
    if total.pending:
        print("pending: they have the leader epoch of the root, so the running broker may still name them")
    if total.deletable and not deleted:
        print("this was a dry run; add --delete")
