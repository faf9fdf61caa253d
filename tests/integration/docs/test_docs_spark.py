"""docs/spark.md is true: its commands and programs run, in their order, and say what it says; so does the notebook."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.integration.docs.test_docs_readme import Fence, Reader, reader
from tests.support.repository import ROOT
from thermocline.pipeline.spark.options import KNOWN

PAGE = ROOT / "docs/spark.md"
NOTEBOOK = ROOT / "docs/replay.ipynb"
ORDERS = 20_000
SPARK_TIMEOUT_S = 150  # seconds of imports and a JVM, on a loaded machine
BAD = 1  # values that are not JSON
SUM = sum(n + 0.5 for n in range(1, ORDERS + 1))

__all__ = ["reader"]

pytestmark = pytest.mark.timeout(480)  # 133 s alone; four Spark sessions beside other tests take twice that


def tutorial() -> list[Fence]:
    page = PAGE.read_text()
    part = page[page.index("<!-- tutorial:") : page.index("<!-- end of the tutorial -->")]
    return [Fence(*fence) for fence in re.findall(r"^```(\w*)\n(.*?)^```", part, re.M | re.S)]


def programs(steps: list[Fence]) -> list[Fence]:
    """The same with the fences of one Spark session as one program, as they are one conversation."""
    joined: list[Fence] = []
    session: list[Fence] = []
    for step in steps:
        if step.language == "python" and re.search(r"\bspark\b", step.text.replace("pyspark", "")):
            session.append(step)
            if "spark.stop()" in step.text:
                joined.append(Fence("python", "\n".join(part.text for part in session)))
        else:
            joined.append(step)
    return joined


def test_every_step_of_the_tutorial_runs(reader: Reader) -> None:
    """Counts, sums, gaps and exit codes are those of what the tutorial itself produced; the broker is down half-way."""
    reader.timeout_s = SPARK_TIMEOUT_S
    printed: list[str] = []
    for step in programs(tutorial()):
        if step.language == "python":
            if "thermocline.read(" in step.text:
                assert reader.stop() == 0  # "Stop the broker first, if you like"
            printed.append(reader.python(step.text))
        for command in step.commands if step.language == "sh" else ():
            if command.startswith("pip install"):
                assert "spark" in (ROOT / "pyproject.toml").read_text()  # `make test` has it installed
            elif command.startswith("thermocline serve"):
                reader.serve(command)
            else:
                printed.append(reader.type(command))
    said = "\n".join(printed)
    rows = ORDERS + BAD
    assert re.search(rf"\|\s*{rows}\|\s*2\.0002E8\|", said)
    assert f"{rows + 1} rows with the hot tail" in said
    assert f"{rows} streamed in 2 batches" in said
    # A producer's batches fall to a partition by chance and time: nobody knows how many lie in each.
    explained = re.search(r"offsets +([\d,]+) of 20,001 \(([\d,]+) pruned\)\n +segments +1 of 2 \(1 pruned\)", said)
    assert explained, said[-6_000:]
    read, pruned = (int(figure.replace(",", "")) for figure in explained.groups())
    assert read + pruned == rows and pruned >= 100
    assert "behind: {'offsets': 0, 'bytes': 0}" in said
    assert f"{rows} rows, 0 gaps" in said
    assert f"dead letters  {BAD} in lake.orders_dead_letters" in said
    assert f"({ORDERS}, {SUM})" in said
    assert re.search(r"\nmerged +\d+ files ", said)
    assert re.search(rf"table +lake\.days\n.*\nrows +{rows:,}\n", said, re.S)
    assert re.search(r"damaged or missing +0\n", said)


def test_every_option_stands_in_the_table() -> None:
    """And the table has no option that the source does not know."""
    page = PAGE.read_text()
    table = page[page.index("## Options") : page.index("## What to expect")]
    named = {name for name in re.findall(r"`([\w.]+)`", table) if name in KNOWN}
    assert named == set(KNOWN)
    for row in re.findall(r"^\| (`.+?) \|", table, re.M):
        for name in re.findall(r"`([\w.*]+)`", row):
            assert name in KNOWN or name == "kafka.*", name


def test_the_sample_of_the_readme_is_well_formed() -> None:
    """It names somebody's bucket: it compiles, and every option in it is one."""
    readme = (ROOT / "README.md").read_text()
    (sample,) = re.findall(r"^```python\n(.*?)^```", readme[readme.index("## Replay with Spark") :], re.M | re.S)
    compile(sample, "README.md", "exec")
    options = re.findall(r'option\("(\w+)"', sample)
    assert options and set(options) <= set(KNOWN)


def test_the_notebook_runs_and_keeps_its_pictures() -> None:
    """From a broker to pictures in a fresh kernel: no cell fails, and what it counts is what the stored outputs say."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(ROOT)}}
    client.NotebookClient(fresh, timeout=SPARK_TIMEOUT_S, kernel_name="python3", resources=resources).execute()
    for notebook in (stored, fresh):
        assert kinds(notebook).count("image/png") == 2
    assert said(stored)[0] == said(fresh)[0] and "no broker any more" in said(fresh)[0]
    assert NOTEBOOK.stat().st_size < 100_000, "pictures and all"


def kinds(notebook: Any) -> list[str]:
    return [kind for output in outputs(notebook) for kind in output.get("data", {})]


def said(notebook: Any) -> list[str]:
    return [output["text"] for output in outputs(notebook) if output.get("name") == "stdout"]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]
