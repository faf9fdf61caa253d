"""What is not as it should be, in sentences an operator can act on: what happened, how far it is, what to do.

Owns the names and the words, the same in `tier status`, in `/broker` and as the label of one metric. Always true: no
condition, no sentence; each ends with what to do, and docs/operations.md has a section on each name. Pure. Must not
know where the figures come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from broker.config.units import show_duration
from broker.observe import cluster_findings
from broker.observe.cluster_findings import Finding
from broker.partition.leading.produce_backpressure import PRESSURE_DELAYS_AT, PRESSURE_REFUSES_AT

LAG_WARN_MS = 300_000
SILENCE_WARN_MS = 5_000
"""Three heartbeats are answered in that, and a controller that died is replaced in twice that."""
SHOWN_MAX = 3
_RELIEF = "see blocked by, free disk space, or raise thermocline.local.bytes.max"


class Condition(Enum):
    """Worst first; the value is its name everywhere."""

    NOT_READY = "not_ready"
    NO_LEADER = cluster_findings.NO_LEADER  # of partitions; told by the controller
    RECOVERING = cluster_findings.RECOVERING  # and these by leaders
    BELOW_MIN = cluster_findings.BELOW_MIN
    CONTROLLER_SILENT = "controller_silent"
    ROOT_DAMAGED = "root_damaged"  # of partitions that a read-only broker cannot serve
    LOG_OFFLINE = "log_offline"  # a write or sync failed, or a log refused to open
    UNFIT = "unfit"  # others lead what they can
    COPY_STOPPED = "copy_stopped"  # of a partition that another broker leads
    DISK_FULL = "disk_full"
    PRODUCES_REFUSED = "produces_refused"  # local logs are over their limit and nothing may go
    PRODUCES_SLOWED = "produces_slowed"
    STORE_UNREACHABLE = "store_unreachable"
    STORE_REFUSES = "store_refuses"  # some calls fail again and again while others are answered
    RESERVATION = "reservation"  # offsets are used up and the bucket does not answer
    BROKER_AWAY = cluster_findings.BROKER_AWAY  # told by the controller
    UNDER_REPLICATED = cluster_findings.UNDER_REPLICATED
    UPLOAD_LAGS = "upload_lags"
    CACHE_REDUCED = "cache_reduced"


@dataclass(frozen=True, slots=True)
class Facts:
    """What conditions are made of. Bytes, milliseconds; `offline` and `full` name partitions."""

    data_dir: str
    not_ready: str = ""  # what a broker that serves nobody waits for
    is_read_only: bool = False
    damaged_roots: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()
    unfit_because: str = ""
    copies_stopped: tuple[str, ...] = ()  # partition and why
    silent_ms: int = 0  # since when the controller answers nothing here
    controller: int | None = None
    cluster: tuple[Finding, ...] = ()  # what this broker is to tell of its cluster
    full: tuple[str, ...] = ()
    out_of_offsets: tuple[str, ...] = ()
    disk_free_bytes: int = 0
    disk_bytes: int = 0
    log_limit_bytes: int = 0
    limit_is_share: bool = False  # of the file system, which others may fill too
    local_excess_ratio: float = 0.0
    store_failure: str = ""  # with how often and for how long
    store_refusals: tuple[str, ...] = ()  # operations, each with what the store said, how often and for how long
    copy_lag_bytes: int = 0
    copy_lag_ms: int = 0
    blocked: tuple[str, ...] = ()
    cache_limit_bytes: int = 0
    cache_bytes_max: int = 0


class Named(msgspec.Struct, frozen=True):
    """A condition that holds, and its sentence."""

    name: str
    says: str


def conditions(facts: Facts) -> list[Named]:
    """Those that hold, worst first."""
    says = _of_cluster(facts.cluster) | _of_broker(facts) | _of_disk(facts) | _of_bucket(facts)
    return [Named(condition.value, says[condition]) for condition in Condition if condition in says]


def _of_cluster(findings: tuple[Finding, ...]) -> dict[Condition, str]:
    """One sentence a name, in the words of `cluster status`."""
    said: dict[Condition, str] = {}
    for finding in findings:
        condition = Condition(finding.name)
        said[condition] = "; ".join(filter(None, (said.get(condition), f"{finding.what}: {finding.do}")))
    return said


def _of_broker(facts: Facts) -> dict[Condition, str]:
    """This process and the logs it keeps."""
    said: dict[Condition, str] = {}
    if facts.not_ready:
        said[Condition.NOT_READY] = f"{facts.not_ready}: nobody is served until that is over; GET /readyz follows it"
    if facts.offline:
        said[Condition.LOG_OFFLINE] = f"{_named(facts.offline)} offline: check the disk and the log, then restart"
    if facts.silent_ms > SILENCE_WARN_MS:
        who = "the controller" if facts.controller is None else f"the controller, broker {facts.controller},"
        said[Condition.CONTROLLER_SILENT] = (
            f"{who} has not answered for {show_duration(facts.silent_ms // 1000 * 1000)}: what this broker leads it "
            "leads on, nothing is decided for it; another takes over when the lease stands still; when it lasts, check "
            "the network between them (--internal), and the bucket"
        )
    if facts.unfit_because:
        said[Condition.UNFIT] = (
            f"{facts.unfit_because}: others lead what they can, this broker leads again when that is over"
        )
    if facts.copies_stopped:
        said[Condition.COPY_STOPPED] = (
            f"{_named(facts.copies_stopped)}: copied no more; check the disk and the log, then restart "
            "where it is not tried again by itself"
        )
    return said


def _of_disk(facts: Facts) -> dict[Condition, str]:
    said: dict[Condition, str] = {}
    if facts.full:
        said[Condition.DISK_FULL] = (
            f"no space left for {_named(facts.full)} ({facts.disk_free_bytes >> 20} MB free below {facts.data_dir}): "
            "appends are refused, reads go on; free space, appends go on by themselves"
        )
    if (excess := facts.local_excess_ratio) > PRESSURE_REFUSES_AT:
        said[Condition.PRODUCES_REFUSED] = f"{_over(facts)}: produces are refused; {_RELIEF}"
    elif excess > PRESSURE_DELAYS_AT:
        said[Condition.PRODUCES_SLOWED] = f"{_over(facts)}: produces wait, and are refused at 10 %; {_RELIEF}"
    if facts.cache_limit_bytes < facts.cache_bytes_max:
        said[Condition.CACHE_REDUCED] = (
            f"the disk leaves {facts.cache_limit_bytes >> 20} of {facts.cache_bytes_max >> 20} MB to the chunk cache: "
            "cold reads go to the bucket more often; free space, or lower thermocline.cache.bytes"
        )
    return said


def _over(facts: Facts) -> str:
    excess, limit = facts.local_excess_ratio, facts.log_limit_bytes
    if facts.limit_is_share and facts.disk_bytes:
        used, stuck = 1 - facts.disk_free_bytes / facts.disk_bytes, int(excess * limit) >> 20
        return (
            f"the file system of {facts.data_dir} is {used:.0%} full and {stuck} MB of local logs are not in the bucket"
        )
    return f"local logs are {excess:.0%} over their limit of {limit >> 20} MB and the bucket does not hold the rest"


def _of_bucket(facts: Facts) -> dict[Condition, str]:
    """The store, and what is to be written to it or read from it."""
    said: dict[Condition, str] = {}
    if facts.damaged_roots:
        said[Condition.ROOT_DAMAGED] = (
            f"{_named(facts.damaged_roots)}: their manifests in the bucket cannot be used, so nothing of them is "
            "served here; the log says why; whoever owns the bucket has to mend them: `thermocline bucket verify`"
        )
    if facts.store_failure:
        served = "what is cached is served" if facts.is_read_only else "produce and hot reads go on, nothing is copied"
        said[Condition.STORE_UNREACHABLE] = (
            f"the bucket does not answer ({facts.store_failure}): "
            f"{'it is waited for' if facts.not_ready else served}; "
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


def _named(partitions: tuple[str, ...]) -> str:
    more = f" and {len(partitions) - SHOWN_MAX} more" if len(partitions) > SHOWN_MAX else ""
    return ", ".join(partitions[:SHOWN_MAX]) + more
