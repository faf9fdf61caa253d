"""docs/design/late-work.md names all asynchronous work that touches a log, by one of four mechanisms, and nothing that
is gone; and blocking calls that take a log or its directory go through a place or a lease."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.support.repository import syntax_tree

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "design" / "late-work.md"
ROOMS: Final = ("hotstore", "tiering", "broker/partition", "broker/replication")
STARTS: Final = {
    "create_task", "ensure_future", "spawn", "spawn_with_callback", "call_later", "call_soon", "call_at",
    "add_done_callback",
}  # fmt: skip
IN_A_PLACE: Final = {"run_alone", "alone"}
MECHANISMS: Final = {"place", "lease", "fence", "value"}
OWN_MODULES: Final = {"hotstore/host/place.py", "hotstore/host/lease.py", "hotstore/host/log_host.py"}
"""Of the place: only they hand a log to a worker themselves."""


def _is_start(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func) == "supervise"
    name, on = call.func.attr, ast.unparse(call.func.value)
    return (
        name in STARTS | IN_A_PLACE
        or (name == "run" and on.endswith("workers"))
        or (name in ("call", "begin") and on.rpartition(".")[2].lstrip("_") in ("lease", "at", "place"))
    )


def _calls(node: ast.AST, within: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call below `node`, with the function it stands in, qualified."""
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{child.name}" if within else child.name
        if isinstance(child, ast.Call):
            yield within, child
        yield from _calls(child, name)


def _modules(*components: str) -> Iterator[tuple[str, ast.Module]]:
    for room in components:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), _tree(path)


@cache
def _tree(path: Path) -> ast.Module:
    return syntax_tree(path)


def _in_code() -> set[tuple[str, str]]:
    return {
        (path, function) for path, tree in _modules(*ROOMS) for function, call in _calls(tree, "") if _is_start(call)
    }


def _rows(*, of_others: bool = False) -> list[tuple[str, str]]:
    """(work, mechanism) of each row of the table of all work; `of_others`: of the one of other rooms."""
    text = PAGE.read_text().partition("## All of it")[2].partition("### In other packages")[2 if of_others else 0]
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| `")]
    return [(row[1], row[2]) for row in cells]


def _named(*, of_others: bool = False) -> list[tuple[str, str]]:
    """(module, function) of each piece of work that the table names."""
    found, module = [], ""
    for work, _ in _rows(of_others=of_others):
        for name in re.findall(r"`([^`]+)`", work):
            if name.endswith(".py"):
                module = name
            else:
                found.append((module, name))
    return found


def test_the_page_names_all_asynchronous_work_that_touches_a_log() -> None:
    named = _named()
    assert len(named) == len(set(named)), "each once"
    assert set(named) == _in_code()


def _functions(node: ast.AST, within: str = "") -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{child.name}" if within else child.name
            yield name
            yield from _functions(child, name)


def test_what_the_page_names_in_other_rooms_is_there() -> None:
    """There, most asynchronous work touches no log: the table names what does, and has no row of what is gone."""
    named = _named(of_others=True)
    assert named and len(named) == len(set(named)), "each once"
    for module, function in named:
        assert not module.startswith(ROOMS), f"{module} is of the table above"
        assert function in _functions(syntax_tree(ROOT / module)), f"{module} has no {function}"


def test_four_mechanisms_are_enough() -> None:
    rows = _rows()
    assert len(rows) > 20 and {mechanism for _, mechanism in rows} == MECHANISMS
    assert {mechanism for _, mechanism in _rows(of_others=True)} <= MECHANISMS


def _takes_a_log(call: ast.Call) -> bool:
    """Whether what a worker is given is a log, its directory, or a function of one."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    for one in given:
        for part in ast.walk(one):
            if isinstance(part, ast.Attribute) and part.attr in ("path", "directory", "log", "opened"):
                return True
            if isinstance(part, ast.Name) and part.id in ("log", "local", "opened", "directory"):
                return True
    return False


def test_no_worker_is_given_a_log_or_its_directory_but_through_a_place_or_a_lease() -> None:
    """A path means whatever lies there when the thread gets to it."""
    found = [
        f"{path}: {function}: {ast.unparse(call)}"
        for path, tree in _modules("hotstore", "tiering", "broker")
        if path not in OWN_MODULES and not path.startswith("tiering/reading/")  # of objects, which never change
        for function, call in _calls(tree, "")
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "run"
        and ast.unparse(call.func.value).endswith("workers")
        and _takes_a_log(call)
    ]
    assert not found, "\n".join(found)


def test_workers_are_handed_on_by_nobody_but_who_enters_a_data_directory() -> None:
    """`workers.run` is called where it is named, so that the rule above sees what it is given."""
    found = set()
    for path, tree in _modules("hotstore", "tiering", "broker"):
        called = {id(call.func) for _, call in _calls(tree, "")}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "run" and ast.unparse(node.value).endswith("workers"):
                found |= set() if id(node) in called else {path}
    assert found == {"broker/startup/directory_claim.py"}, "the data directory's own files, before there is a log host"


CHANGES: Final = {
    "append_as_leader", "append_as_follower", "append_gap", "roll", "begin_epoch", "advance_log_start",
    "delete_local_before", "unlink", "truncate_to", "start_at",
}  # fmt: skip


def test_a_log_is_changed_through_a_lease_only() -> None:
    """Outside of hotstore: `lease.roll()`, never `log.roll()`; nor is an attribute of a log set."""
    found = []
    for path, tree in _modules("tiering", "broker"):
        for function, call in _calls(tree, ""):
            if isinstance(call.func, ast.Attribute) and call.func.attr in CHANGES:
                on = ast.unparse(call.func.value)
                if on.endswith(("log", "local")) and not on.endswith("shard_log"):  # which has a lease
                    found.append(f"{path}: {function}: {on}.{call.func.attr}")
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value).endswith(("log", "local", "opened")):
                    found.append(f"{path}: {ast.unparse(target)} is set")
    assert set(found) <= {
        "tiering/partition_state.py: self.lease.opened.is_bare is set",
        "broker/partition/following/follower_role.py: opened.joins is set",  # of the assignment, not of the log
    }, found


def test_no_attribute_is_read_before_a_wait_and_written_after_it() -> None:
    """`self.x &= await …` takes the old value first: what others wrote during the wait is lost (seed 4028)."""
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in _modules("broker", "coldstore", "hotstore", "tiering", "seams", "thermocline")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign) and _is_torn(node)
    ]
    assert not found


def _is_torn(node: ast.Assign | ast.AugAssign) -> bool:
    targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
    shared = [ast.unparse(target) for target in targets if isinstance(target, ast.Attribute | ast.Subscript)]
    waits = any(isinstance(part, ast.Await) for part in ast.walk(node.value))
    reads = isinstance(node, ast.AugAssign) or any(ast.unparse(part) in shared for part in ast.walk(node.value))
    return bool(shared) and waits and reads


@pytest.mark.parametrize(
    ("code", "is_torn"),
    [
        ("self.x &= await f()", True),
        ("self.x[0] += 1 + await f()", True),
        ("self.x = self.x or await f()", True),
        ("self.x = await f()", False),
        ("x &= await f()", False),
        ("self.x &= f()", False),
    ],
)
def test_the_rule_for_waits_in_assignments(code: str, is_torn: bool) -> None:
    (node,) = (n for n in ast.walk(ast.parse(code, type_comments=False)) if isinstance(n, ast.Assign | ast.AugAssign))
    assert _is_torn(node) is is_torn
