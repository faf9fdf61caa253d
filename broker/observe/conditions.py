"""Conditions: problems of this broker, each as a sentence that ends with the remedy.

Names and sentences are the same in `tier status`, in `/broker` and in the label of one metric; docs/operations.md has a
section on each name. Pure.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from broker.config.units import show_duration
from broker.observe import cluster_findings
from broker.observe.cluster_findings import Finding
from broker.observe.standing import ShownCondition
from broker.partition.leading.produce_backpressure import PRESSURE_DELAYS_AT, PRESSURE_REFUSES_AT

LAG_WARN_MS = 300_000
SILENCE_WARN_MS = 5_000
"""Three heartbeats are answered in that time; a dead controller is replaced in twice that time."""
SHOWN_MAX = 3
_RELIEF = "see blocked by, free disk space, or raise thermocline.local.bytes.max"


class Condition(Enum):
    """Names of the conditions, the worst first. A value is the condition's name everywhere."""

    NOT_READY = "not_ready"
    NO_LEADER = cluster_findings.NO_LEADER  # reported by the controller
    RECOVERING = cluster_findings.RECOVERING  # reported by leaders
    BELOW_MIN = cluster_findings.BELOW_MIN
    CONTROLLER_SILENT = "controller_silent"
    ROOT_DAMAGED = "root_damaged"  # a read-only broker cannot serve the partitions of these roots
    LOG_OFFLINE = "log_offline"  # a write or sync failed, or a log did not open
    UNFIT = "unfit"  # this broker leads only partitions that no other broker can lead
    COPY_STOPPED = "copy_stopped"  # this broker no longer copies a partition from its leader
    UNCLEANABLE = "uncleanable"  # compacted logs that the cleaner gave up
    BUCKET_UNCLEANABLE = "bucket_uncleanable"  # compacted topics whose part in the bucket cannot be rewritten
    DISK_FULL = "disk_full"
    PRODUCES_REFUSED = "produces_refused"  # local logs are over their limit and no segment may be deleted
    PRODUCES_SLOWED = "produces_slowed"
    KEY_MISSING = "key_missing"  # objects of the bucket are under a key that the key file lacks
    STORE_UNREACHABLE = "store_unreachable"
    STORE_REFUSES = "store_refuses"  # some operations always fail while other operations succeed
    RESERVATION = "reservation"  # offsets are used up and the bucket does not answer
    BROKER_AWAY = cluster_findings.BROKER_AWAY  # reported by the controller
    UNDER_REPLICATED = cluster_findings.UNDER_REPLICATED
    TRANSACTION_OVERDUE = "transaction_overdue"
    UPLOAD_LAGS = "upload_lags"
    CACHE_REDUCED = "cache_reduced"
    CERTIFICATE_REFUSED = "certificate_refused"  # a new certificate is refused; the old one is used
    CERTIFICATE_EXPIRES = "certificate_expires"
    INSECURE = "insecure"  # --insecure allows an address that other machines reach without authentication


class Facts(msgspec.Struct, frozen=True):
    """The input of the conditions. Bytes, milliseconds; `offline` and `full` name partitions."""

    data_dir: str
    not_ready: str = ""  # the present wait of the start
    is_read_only: bool = False
    damaged_roots: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()
    unfit_because: str = ""
    copies_stopped: tuple[str, ...] = ()  # partition and why
    uncleanable: tuple[str, ...] = ()  # partition and why
    bucket_uncleaned: tuple[str, ...] = ()  # partition and why, with the object's name
    silent_ms: int = 0  # time since the controller's last answer
    controller: int | None = None
    cluster: tuple[Finding, ...] = ()  # findings that this broker reports
    overdue_transactions: tuple[str, ...] = ()  # transactional id and why
    full: tuple[str, ...] = ()
    out_of_offsets: tuple[str, ...] = ()
    disk_free_bytes: int = 0
    disk_bytes: int = 0
    log_limit_bytes: int = 0
    limit_is_share: bool = False  # a share of the file system, which others may fill too
    local_excess_ratio: float = 0.0
    store_failure: str = ""  # the failure, its count and its duration
    missing_keys: tuple[str, ...] = ()  # ids, each with the operation that failed, its count and its duration
    store_refusals: tuple[str, ...] = ()  # operations, each with the store's error, its count and its duration
    copy_lag_bytes: int = 0
    copy_lag_ms: int = 0
    blocked: tuple[str, ...] = ()
    cache_limit_bytes: int = 0
    cache_bytes_max: int = 0
    refused_certificates: tuple[str, ...] = ()  # certificates, each with the reason
    expiring_certificates: tuple[str, ...] = ()  # listener and time
    insecure: tuple[str, ...] = ()  # addresses


def conditions(facts: Facts) -> list[ShownCondition]:
    """The conditions that hold, worst first."""
    says = _of_cluster(facts.cluster) | _of_broker(facts) | _of_disk(facts) | _of_bucket(facts) | _of_security(facts)
    return [ShownCondition(condition.value, says[condition]) for condition in Condition if condition in says]


def _of_cluster(findings: tuple[Finding, ...]) -> dict[Condition, str]:
    """One sentence per finding name, with the text of `cluster status`."""
    said: dict[Condition, str] = {}
    for finding in findings:
        condition = Condition(finding.name)
        said[condition] = "; ".join(filter(None, (said.get(condition), f"{finding.what}: {finding.do}")))
    return said


def _of_broker(facts: Facts) -> dict[Condition, str]:
    """Conditions of this process and its logs."""
    said: dict[Condition, str] = {}
    if facts.not_ready:
        said[Condition.NOT_READY] = f"{facts.not_ready}: no client is served until then; GET /readyz shows the progress"
    if facts.offline:
        said[Condition.LOG_OFFLINE] = f"{_named(facts.offline)} offline: check the disk and the log, then restart"
    if facts.silent_ms > SILENCE_WARN_MS:
        who = "the controller" if facts.controller is None else f"the controller, broker {facts.controller},"
        said[Condition.CONTROLLER_SILENT] = (
            f"{who} has not answered for {show_duration(facts.silent_ms // 1000 * 1000)}: this broker keeps leading "
            "its partitions, but gets no decisions; another broker takes over when the lease is not renewed; if "
            "it lasts, check the network between them (--internal), and the bucket"
        )
    if facts.unfit_because:
        said[Condition.UNFIT] = (
            f"unfit to lead, because {facts.unfit_because}: other in-sync replicas lead its partitions until "
            "that is over"
        )
    if facts.copies_stopped:
        said[Condition.COPY_STOPPED] = (
            f"{_named(facts.copies_stopped)}: no longer copied; check the disk and the log, then restart "
            "unless it is retried automatically"
        )
    if facts.uncleanable:
        said[Condition.UNCLEANABLE] = (
            f"{_named(facts.uncleanable)}: the log is not compacted and grows; it is served as before, and the "
            "cleaner tries again every five minutes; remove the named cause"
        )
    if facts.bucket_uncleaned:
        said[Condition.BUCKET_UNCLEANABLE] = (
            f"{_named(facts.bucket_uncleaned)}: the part in the bucket is not compacted and grows; it is served "
            "as before, and the cleaner tries again every five minutes; restore the object from a copy or earlier "
            "version"
        )
    if facts.overdue_transactions:
        said[Condition.TRANSACTION_OVERDUE] = (
            f"{_named(facts.overdue_transactions)}: read_committed consumers wait behind it, and nothing above "
            "it is copied; see `thermocline txn describe`; if only a producer id is given, end it with "
            "`thermocline txn abort`"
        )
    return said


def _of_disk(facts: Facts) -> dict[Condition, str]:
    said: dict[Condition, str] = {}
    if facts.full:
        said[Condition.DISK_FULL] = (
            f"no space left for {_named(facts.full)} ({facts.disk_free_bytes >> 20} MB free below {facts.data_dir}): "
            "appends are refused, reads are served; free space, then appends resume"
        )
    if (excess := facts.local_excess_ratio) > PRESSURE_REFUSES_AT:
        said[Condition.PRODUCES_REFUSED] = f"{_over(facts)}: produces are refused; {_RELIEF}"
    elif excess > PRESSURE_DELAYS_AT:
        said[Condition.PRODUCES_SLOWED] = f"{_over(facts)}: produces wait, and are refused at 10 %; {_RELIEF}"
    if facts.cache_limit_bytes < facts.cache_bytes_max:
        said[Condition.CACHE_REDUCED] = (
            f"the disk has room for only {facts.cache_limit_bytes >> 20} of {facts.cache_bytes_max >> 20} MB of the "
            "chunk cache: cold reads go to the bucket more often; free space, or lower thermocline.cache.bytes"
        )
    return said


def _over(facts: Facts) -> str:
    excess, limit = facts.local_excess_ratio, facts.log_limit_bytes
    if facts.limit_is_share and facts.disk_bytes:
        used, stuck = 1 - facts.disk_free_bytes / facts.disk_bytes, int(excess * limit) >> 20
        return (
            f"the file system of {facts.data_dir} is {used:.0%} full and {stuck} MB of local logs are not in the bucket"
        )
    return f"local logs are {excess:.0%} over their limit of {limit >> 20} MB, and this excess is not in the bucket"


def _of_bucket(facts: Facts) -> dict[Condition, str]:
    """Conditions of the store, and of work that waits for it."""
    said: dict[Condition, str] = {}
    if facts.damaged_roots:
        said[Condition.ROOT_DAMAGED] = (
            f"{_named(facts.damaged_roots)}: their manifests in the bucket cannot be used, so they are not served "
            "here; the log says why; the owner of the bucket has to repair them: `thermocline bucket verify`"
        )
    if facts.missing_keys:
        said[Condition.KEY_MISSING] = (
            "objects of the bucket need a key that is not in thermocline.encryption.key.file: key "
            f"{'; key '.join(facts.missing_keys[:SHOWN_MAX])}: put it into the file, then `thermocline certificate "
            "reload`"
        )
    if facts.store_failure:
        served = "cached data is served" if facts.is_read_only else "produce and hot reads work, but nothing is copied"
        said[Condition.STORE_UNREACHABLE] = (
            f"the bucket does not answer ({facts.store_failure}): "
            f"{'the start waits for it' if facts.not_ready else served}; "
            "check network, credentials and the bucket's service"
        )
    elif facts.store_refusals:
        said[Condition.STORE_REFUSES] = (
            f"the bucket refuses {'; '.join(facts.store_refusals[:SHOWN_MAX])}: it answers other calls, so check its "
            "policy, its quota and its space; nothing has to be restarted"
        )
    if facts.out_of_offsets:
        said[Condition.RESERVATION] = (
            f"{_named(facts.out_of_offsets)} used up the reserved offsets: appends are refused until the bucket answers"
        )
    if facts.copy_lag_ms > LAG_WARN_MS:
        why = f", blocked: {_named(facts.blocked)}" if facts.blocked else ""
        said[Condition.UPLOAD_LAGS] = (
            f"{facts.copy_lag_bytes / 1e6:.1f} MB wait for the bucket, the oldest for "
            f"{show_duration(facts.copy_lag_ms // 1000 * 1000)}{why}: compare produce and upload rates"
        )
    return said


def _of_security(facts: Facts) -> dict[Condition, str]:
    said: dict[Condition, str] = {}
    if facts.refused_certificates:
        said[Condition.CERTIFICATE_REFUSED] = (
            f"{'; '.join(facts.refused_certificates[:SHOWN_MAX])}: the old one is used; mend the file, then "
            "`thermocline certificate reload`"
        )
    if facts.expiring_certificates:
        said[Condition.CERTIFICATE_EXPIRES] = (
            f"{_named(facts.expiring_certificates)}: no client can connect after that; replace the file, and it is "
            "read within ten seconds"
        )
    if facts.insecure:
        said[Condition.INSECURE] = (
            f"{_named(facts.insecure)}: other machines reach it without authentication and encryption, as --insecure "
            "allows; listen with SASL_SSL, or SSL with ssl.client.auth=required, and leave --insecure out"
        )
    return said


def _named(partitions: tuple[str, ...]) -> str:
    more = f" and {len(partitions) - SHOWN_MAX} more" if len(partitions) > SHOWN_MAX else ""
    return ", ".join(partitions[:SHOWN_MAX]) + more
