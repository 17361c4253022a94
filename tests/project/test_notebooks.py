"""The notebooks run from the top; what is committed of them is small and names no machine."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from launches import Launches
from nbclient import NotebookClient
from test_compare import compared, made

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RESULTS = ROOT / "experiments" / "results"
SECONDS = 600  # for a cell: only what hangs takes longer
BYTES = 400_000


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook, run in `folder`; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources)
    asyncio.run(client.async_execute())
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook: nbformat.NotebookNode, *streams: str) -> list[str]:
    """What the cells wrote to these streams."""
    return [
        output.text
        for cell in code_cells(notebook)
        for output in cell.outputs
        if output.output_type == "stream" and output.name in streams
    ]


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if "results" in path.name else pytest.mark.hours, id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_from_the_top_and_its_findings_hold(path):
    before, after = nbformat.read(path, as_version=4), executed(path, path.parent)
    assert pictures(after) == pictures(before)
    assert texts(after, "stdout")


@pytest.mark.hours
def test_results_are_drawn_with_a_comparison(tmp_path):
    there = tmp_path / "experiments" / "results"
    shutil.copytree(RESULTS, there)
    compared(tmp_path / "runs", Launches(made))
    shutil.copy(tmp_path / "runs" / "comparison.json", there / "cats.json")
    (tmp_path / "notebooks").mkdir()
    (path,) = (path for path in NOTEBOOKS if "results" in path.name)
    said = "".join(texts(executed(path, tmp_path / "notebooks"), "stdout"))
    assert "cats, equal epochs: elastic@0.5 reaches" in said
    assert re.search(r"full: .* times the seconds, ", said)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_states_its_claim_and_what_was_found(path):
    notebook = nbformat.read(path, as_version=4)
    assert "**Claim.**" in notebook.cells[0].source
    found = [cell.source for cell in notebook.cells].index("## Found")
    assert "assert " in "".join(cell.source for cell in notebook.cells[found:])
    assert "".join(texts(notebook, "stdout"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_whole_and_small(path):
    notebook = nbformat.read(path, as_version=4)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_names_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    said = [cell.source for cell in notebook.cells] + texts(notebook, "stdout", "stderr")
    for cell in code_cells(notebook):
        said += [str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs]
    assert not re.search(r"(^|[\s'\"=(])/\w+/|site-packages", "\n".join(said))
    assert not texts(notebook, "stderr")


def test_there_are_notebooks_for_each_part_of_the_flow():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04"]
