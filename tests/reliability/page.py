"""docs/RELIABILITY.md, written from recorded results. Words stand here, figures do not: each is looked up.

Always true: a figure is printed with its denominator, the commit it was measured at and the command that gives it; a
run that was never made says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tests.reliability.results import ROOT, load

PAGE = os.path.join(ROOT, "docs", "RELIABILITY.md")
Figures = Mapping[str, Any]

HEAD = """# Reliability in figures

Written by `make reliability` from the results in [docs/reliability/](reliability/). Each figure has its
denominator, its command, and the commit it was measured at (+ = with uncommitted changes). The promises are in
[GUARANTEES.md](GUARANTEES.md).
`python -m tests.reliability --quick` repeats the parts that take minutes; without `--quick` everything runs, for hours.
`make reliability ONLY=simulation,fuzz` repeats a part; `RENDER=1` only writes the page.
"""


def write_page() -> None:
    parts = [HEAD, _summary(), _simulation(), _planted(), _flips(), _power(), _fuzz(), _soak()]
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write("\n".join(part for part in parts if part))


def _figures(name: str) -> Figures:
    return (load(name) or {}).get("figures", {})


def _rows(name: str) -> list[dict[str, Any]]:
    return (load(name) or {}).get("rows", [])


def _origin(name: str) -> tuple[str, str]:
    """(commit, command) of a result; of the oldest row where rows were measured one by one."""
    found = load(name)
    if found is None:
        return "never run", ""
    sources = found.get("rows", []) if "commit" not in found else [found]
    commits = dict.fromkeys(source["commit"] + ("+" if source["dirty"] else "") for source in sources)
    return ", ".join(commits), f"`{found['command']}`"


def _table(header: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *(tuple(_cell(cell) for cell in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    return "–" if value is None or value == "" else str(value).replace("|", "\\|")


def _passed(figures: Figures) -> str:
    if "tests" not in figures:
        return "–"
    skipped = f" ({figures['tests_skipped']} skipped)" if figures["tests_skipped"] else ""
    return f"{figures['tests_passed']} of {figures['tests'] - figures['tests_skipped']} tests{skipped}"


def _summary() -> str:
    sim, bugs, flips, cuts = (_figures(name) for name in ("simulation", "planted", "bit_flips", "power_cuts"))
    fuzz, soak, plants = _rows("fuzz"), {row["phase"]: row for row in _rows("soak")}, _rows("fuzz_planted")
    kills = soak.get("kills", {})
    crash, peers = _figures("crash_points"), _figures("peers")
    rows: list[tuple[object, ...]] = []

    def add(name: str, what: str, measured: object, of: object) -> None:
        commit, command = _origin(name)
        rows.append((what, measured, of, commit, command))

    if sim:
        upper = f"; at 95 % ≤ {3 / sim['seeds']:.2%} of seeds" if not sim["seeds_with_findings"] else ""
        add(
            "simulation",
            "simulated runs with a finding",
            sim["seeds_with_findings"],
            f"{_cell(sim['seeds'])} seeds{upper}",
        )
        add("simulation", "acknowledged records lost, doubled or changed in simulation",
            0 if not sim["seeds_with_findings"] else None,
            f"{_cell(sim['acked'])} acknowledged, {sim['simulated_hours']} simulated hours")  # fmt: skip
    if kills:
        acked = _cell(kills["acked_all"] + kills["acked_1"])
        of = f"{acked} acknowledged, {kills['kills']} kills in {kills['minutes']} min"
        add("soak", "the same with real processes and SIGKILL: problems", kills["problems"], of)
    if bugs:
        add("planted", "planted bugs caught", bugs["caught"],
            f"{bugs['bugs']} bugs; median {bugs['seeds_median']} seeds, at most {bugs['seeds_most']}")  # fmt: skip
    if flips:
        add("bit_flips", "single-bit flips after which wrong data was served", flips["wrong"],
            f"{_cell(flips['bits'])} flips: {_cell(flips['refused'])} refused, {_cell(flips['repaired'])} repaired, "
            f"{_cell(flips['harmless'])} harmless; {_cell(flips['known_wrong_offset'])} known (see below)")  # fmt: skip
    if cuts:
        add(
            "power_cuts",
            "restarts after a power cut that broke a promise",
            0 if cuts["passed"] else None,
            f"{_cell(cuts['restarts'])} restarts",
        )
    if crash:
        add(
            "crash_points",
            "SIGKILL at named points of a real broker",
            crash["points_killed_at"],
            f"{crash['points']} points; {_passed(crash)}",
        )
    if fuzz:
        add("fuzz", "fuzz: open findings", sum(row["crashes"] for row in fuzz),
            f"{_cell(sum(row['executions'] for row in fuzz))} executions of {len(fuzz)} targets")  # fmt: skip
    if plants:
        add(
            "fuzz_planted",
            "planted off-by-ones that fuzzing found",
            sum(row["found"] for row in plants),
            f"{len(plants)} plants",
        )
    if peers:
        covered = ", ".join(f"T{number}" for number in peers["rows_covered"])
        add(
            "peers",
            "bugs of other systems with a test here",
            len(peers["rows_covered"]),
            f"{_passed(peers)}: {covered}",
        )
    for name, what in (
        ("every_effect", "a power cut before every effect of a disk scenario"),
        ("determinism", "seeds that are the same run under any hash seed"),
        ("store_faults", "the store fails in every way, on every operation"),
        ("hostile", "hostile frames and batches"),
        ("clients", "stock clients reading what the others wrote, hot and cold"),
        ("conformance", "object stores held to the conditions a log needs"),
    ):
        if found := _figures(name):
            add(name, what, _passed(found), f"{found.get('tests', 0)} collected")
        else:
            add(name, what, None, None)
    return "## At a glance\n\n" + _table(("what", "measured", "of", "commit", "command"), rows)


def _simulation() -> str:
    sim = _figures("simulation")
    if not sim:
        return ""
    rows = [(row["row"], row["hits"], row["parts"]) for row in sim["faults"]]
    words = (
        f"{_cell(sim['seeds'])} seeds, {sim['simulated_hours']} simulated hours, {_cell(sim['callbacks'])} callbacks, "
        f"{_cell(sim['polls'])} polls. A fault counts when it takes effect."
    )
    return f"## Simulation: faults that took effect\n\n{words}\n\n" + _table(
        ("[fault](design/failures.md#faults)", "hits", "made of"), rows
    )


def _planted() -> str:
    bugs = _figures("planted")
    if not bugs:
        return ""
    return "## Planted bugs\n\n" + _table(("bug", "caught by"), [(row["bug"], row["by"]) for row in bugs["rows"]])


def _flips() -> str:
    flips = _figures("bit_flips")
    if not flips:
        return ""
    words = (
        "Each bit of reference files is flipped once, then everything is opened and read again. *known* counts base "
        "offsets inside a segment, which Kafka's CRC does not cover: a hot reader gets a wrong offset until the "
        "segment is copied; the copy refuses it."
    )
    columns = ("kind", "bits", "refused", "repaired", "harmless", "wrong", "known_wrong_offset")
    rows = [tuple(row[name] for name in columns) for row in flips["rows"]]
    return f"## Bit flips\n\n{words}\n\n" + _table((*columns[:-1], "known"), rows)


def _power() -> str:
    cuts = _figures("power_cuts")
    if not cuts or not cuts["rows"]:
        return ""
    columns = ("flush", "restarts", "effects", "kept_subsets")
    rows = [tuple(row[name] for name in columns) for row in cuts["rows"]]
    return "## Power cuts\n\n" + _table(("flush", "restarts", "effects", "surviving subsets of unsynced bytes"), rows)


def _fuzz() -> str:
    if not _rows("fuzz"):
        return ""
    rows = [
        (
            row["target"],
            row["executions"],
            row["crashes"],
            row["edges"],
            f"{row['rss_start_mib']} → {row['rss_end_mib']}",
            f"{row['rss_end_mib'] / max(1, row['rss_start_mib']) - 1:.1%}",
            row["commit"],
        )
        for row in _rows("fuzz")
    ]
    words = "Memory of the fuzzing process, with its corpus, after a tenth of the executions and at the end."
    header = ("target", "executions", "open findings", "edges reached", "RSS MiB", "growth", "commit")
    found = f"## Fuzzing\n\n{words}\n\n" + _table(header, list(rows))
    if plants := _rows("fuzz_planted"):
        planted = [(row["plant"], row["target"], row["found"], row["executions"]) for row in plants]
        found += "\n" + _table(("planted off-by-one", "target", "found", "executions"), list(planted))
    return found


def _soak() -> str:
    phases = {row["phase"]: row for row in _rows("soak")}
    if not phases:
        return ""
    hidden = ("phase", "problems_told", "rss_mib_curve", "command", "commit", "dirty", "python")
    names = [name for name in next(iter(phases.values())) if name not in hidden]
    rows = [(name.replace("_", " "), *(_number(phases[phase].get(name)) for phase in phases)) for name in names]
    words = (
        "Idempotent producers (acks=all), a producer with acks=1, a group that leaves and joins, cold replays, topics "
        "created and deleted, DeleteRecords, on a directory bucket. `kills`: SIGKILL every 60 to 90 s, every third "
        "time again during recovery. Slopes are least squares: within a life after its warm-up, and over medians of "
        "lives. The machine did other work meanwhile."
    )
    told = [f"- {phase}: {problem}\n" for phase, row in phases.items() for problem in row["problems_told"]]
    for phase, row in phases.items():
        if len(row.get("rss_mib_curve", ())) > 2:
            words += f" RSS of `{phase}`, a median every two minutes: {', '.join(map(str, row['rss_mib_curve']))} MiB."
    problems = "\nProblems told:\n\n" + "".join(told) if told else ""
    return f"## Soak\n\n{words}\n\n" + _table(("figure", *phases), list(rows)) + problems


def _number(value: object) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int | float) else _cell(value)
