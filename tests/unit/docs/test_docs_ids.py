"""What the code cites by an id stands in the docs, once, and what the docs link to is there.

Ids: scenarios C…, guarantees G…, other systems' bugs T…, faults, scenarios D… and rules R… of several brokers, rules
TX… of transactions; sections of docs/design.md ("design 6"); ADRs by number. Cited in comments, docstrings, messages
and names of tests in `*.py`, and in the text of `*.md`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.sim.checks.rows import ROWS
from tests.support.repository import ROOT

HOUSES = (
    "seams",
    "logformat",
    "hotstore",
    "coldstore",
    "tiering",
    "broker",
    "thermocline",
    "pyspark_thermocline",
    "tests",
    "bench",
)
TRANSACTIONS = "docs/design/transactions.md"
FAILURES, CLUSTER, GUARANTEES = "docs/design/failures.md", "docs/design/cluster.md", "docs/GUARANTEES.md"
HOMES = {
    "TX": TRANSACTIONS,
    "C": FAILURES,
    "T": FAILURES,
    "fault": FAILURES,
    "G": GUARANTEES,
    "D": CLUSTER,
    "R": CLUSTER,
}

# One id, or a range of them ("T5–T8"). Not: the tail of a name or a flag (a-D9, -O2), Cloudflare's R2, Adya's G1a.
_ID = r"(?<![\w.-])(?<!Cloudflare )(TX|[CDGRTONZK])([1-9]\d?)(?:[–-]\1([1-9]\d?))?(?!\w|\.\w)"
# In names of tests: test_design_c06_…, test_peer_t14_…, test_cluster_d83_….
_IN_A_NAME = r"\bdef test_(?:design|peer|cluster)_([cdt])0?([1-9]\d?)_"
# Faults have letters that others have too, so they are cited as "fault D7", "faults O1, O4": the word says which.
_FAULTS = r"\b[Ff]aults?\s+((?:[A-Z]\d+'?(?:[–-][A-Z]\d+)?(?:,\s+| and )?)+)"
_FAULT = r"([A-Z])(\d+'?)(?:[–-]\1(\d+))?"
_ROW = re.compile(r"^(?:\| |- \*\*|#+ )(fault )?(TX|[A-Z])(\d+'?)(?!\w)", re.M)
# Another document's sections, and tasks, which a reader of this repository does not have.
_STRANGERS = re.compile(
    r"\b(?:(?:semantics|reliability|dependencies) [A-Z]?\d+|\w+\.md \d+|design notes? \w+|evidence [a-h]\b|issue \d+,)",
    re.I,
)


# A comment or a string with its prefix, as `tokenize` finds them in a sixth of the time.
_COMMENT_OR_STRING = re.compile(
    r"#[^\n]*"
    r"|(?:\b[rbfu]{1,2})?(?:"
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')",
    re.S | re.I,
)


def text_of(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def words_of(module: Path) -> str:
    """Comments and strings of a module, and the names of its tests; nothing else of its code."""
    source = module.read_text()
    if not re.search(r"\b[A-Za-z]\d|design|ADR|semantics|reliability|dependencies|evidence|issue", source):
        return ""
    names = [found[0] for found in re.finditer(_IN_A_NAME, source)]
    return "\n".join([*names, *_COMMENT_OR_STRING.findall(source)])


@cache
def sources() -> dict[str, str]:
    """Everything that cites, by its path."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")]
    modules = [path for house in HOUSES for path in (ROOT / house).rglob("*.py") if path != Path(__file__)]
    built = ROOT / "bench" / ".build"  # what benchmarks need: packages of others among it
    found = {str(page.relative_to(ROOT)): text_of(page) for page in pages if built not in page.parents}
    found |= {str(module.relative_to(ROOT)): words_of(module) for module in modules if built not in module.parents}
    # Rows of the table of faults: their ids are checked where they come from, tests/sim/checks/rows.py.
    rows = "|".join(re.escape(row) for row in ROWS)
    return {path: re.sub(rf"(?:^\| |\")(?:{rows})", "", text, flags=re.M) for path, text in found.items()}


def spread(letter: str, first: str, last: str | None) -> Iterator[str]:
    if not last:
        yield letter + first
    else:
        yield from (f"{letter}{number}" for number in range(int(first), int(last) + 1))


def cited(text: str) -> Iterator[str]:
    """The ids in it; a fault's as "fault D7"."""
    for listed in re.findall(_FAULTS, text):
        for one in re.findall(_FAULT, listed):
            yield from (f"fault {name}" for name in spread(*one))
    for one in re.findall(_ID, re.sub(_FAULTS, "", text)):
        yield from spread(*one)
    for letter, number in re.findall(_IN_A_NAME, text):
        yield letter.upper() + number


def defined(page: str) -> list[str]:
    """What its rows, bold items and headings begin with."""
    path = ROOT / page
    found = _ROW.findall(path.read_text()) if path.exists() else []
    return [f"{fault}{letter}{number}" for fault, letter, number in found]


def home_of(name: str) -> str:
    """The page that must define it. A letter that only faults have, without the word: nobody's."""
    kind = "fault" if name.startswith("fault") else name.rstrip("'0123456789")
    return HOMES.get(kind, 'nowhere: say "fault"')


def test_every_id_that_is_cited_is_defined_in_the_docs() -> None:
    known = defaultdict[str, set[str]](set, {page: set(defined(page)) for page in HOMES.values()})
    missing: dict[str, list[str]] = defaultdict(list)
    for path, text in sources().items():
        for name in cited(text):
            if name not in known[home_of(name)]:
                missing[f"{name} in {home_of(name)}"].append(path)
    told = (f"{name} ({', '.join(sorted({*paths}))})" for name, paths in missing.items())
    assert not missing, f"{len(missing)} ids: {'; '.join(told)}"


def test_every_fault_that_simulation_counts_is_defined() -> None:
    known = set(defined(FAILURES))
    for row in ROWS:
        if row in ("settings", "moves", "read-only beside them"):  # an operator's doing, no fault
            continue
        letter, first, last = re.match(_FAULT, row).groups()  # type: ignore[union-attr]
        for name in spread(letter, first, last):
            assert f"fault {name}" in known, row


@pytest.mark.parametrize("page", sorted(set(HOMES.values())))
def test_no_id_is_defined_twice(page: str) -> None:
    ids = defined(page)
    assert ids, f"{page} defines nothing"
    assert not [name for name, count in Counter(ids).items() if count > 1]
    assert not [name for name in ids if home_of(name) != page], "an id of another page"


def test_sections_and_decisions_that_are_cited_exist() -> None:
    """'design 6' is section 6 of docs/design.md, 'ADR 8' the file that begins with 0008."""
    page = ROOT / "docs/design.md"
    sections = set(re.findall(r"^## (\d+)\. ", page.read_text(), re.M)) if page.exists() else set()
    decisions = {int(path.name[:4]) for path in (ROOT / "docs/adr").glob("0*.md")}
    for path, text in sources().items():
        for number in re.findall(r"\b[Dd]esign (\d+)", text):
            assert number in sections, f"{path}: design {number}"
        for number in re.findall(r"\bADR (\d+)", text):
            assert int(number) in decisions, f"{path}: ADR {number}"


def test_nothing_cites_a_document_that_is_not_here() -> None:
    found = {path: _STRANGERS.findall(text) for path, text in sources().items()}
    assert not {path: cites for path, cites in found.items() if cites}


def test_tests_and_modules_that_the_design_names_exist() -> None:
    """`test_…` in the pages of the design is the beginning of a test's name or of a test file's; `….py` is a file."""
    names = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        names |= set(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.M))
    files = {str(path.relative_to(ROOT)) for house in HOUSES for path in (ROOT / house).rglob("*.py")}
    for page in (ROOT / "docs/design.md", *sorted((ROOT / "docs/design").glob("*.md"))):
        text = page.read_text()
        for name in re.findall(r"`(test_\w+)…?`", text):
            assert "NN" in name or any(known.startswith(name) for known in names), f"{page}: {name}"
        for name in re.findall(r"`([\w/]+\.py)`", text):
            assert any(path == name or path.endswith(f"/{name}") for path in files), f"{page}: {name}"


def anchors(page: Path) -> set[str]:
    """As GitHub names headings."""
    found: Counter[str] = Counter()
    names = set()
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def test_links_lead_somewhere() -> None:
    """Relative links of every page: file and heading are there. (bench/RESULTS.md is written by `make bench`.)"""
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            target, _, heading = link.partition("#")
            path = page.parent / target if target else page
            assert path.exists() or target.endswith("bench/RESULTS.md"), f"{page}: {link}"
            if heading and path.suffix == ".md":
                assert heading in anchors(path), f"{page}: {link}"
