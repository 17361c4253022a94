"""The notebooks run from the top; what is committed of them is small and names no machine."""

import asyncio
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 600  # for a cell: only what hangs takes longer
BYTES = 400_000


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
    before, after = (nbformat.read(path, as_version=4) for _ in range(2))
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(after, timeout=SECONDS, kernel_name="python3", resources=resources)
    asyncio.run(client.async_execute())  # raises what a cell raises
    assert pictures(after) == pictures(before)
    assert texts(after, "stdout")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_whole_states_its_claim_and_names_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    assert "**Claim.**" in notebook.cells[0].source
    found = [cell.source for cell in notebook.cells].index("## Found")
    assert "assert " in "".join(cell.source for cell in notebook.cells[found:])
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < BYTES
    said = [cell.source for cell in notebook.cells] + texts(notebook, "stdout")
    for cell in code_cells(notebook):
        said += [str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs]
    assert not re.search(r"(^|[\s'\"=(])/\w+/|site-packages", "\n".join(said))
    assert texts(notebook, "stdout") and not texts(notebook, "stderr")
