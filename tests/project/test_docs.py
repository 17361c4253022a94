"""The documentation names what is there, all of it, and its examples hold."""

import ast
import contextlib
import importlib
import inspect
import io
import re
import shlex
from pathlib import Path

import pages
import paper_specs
import pytest
from pages import DOCS, PAGES, ROOT, TEXTS

import elastic_tf as et
from elastic_tf.__main__ import COMMANDS, command
from elastic_tf.choose.records import COLUMNS
from elastic_tf.files import described
from elastic_tf.methods import baselines

REFERENCE = "".join(pages.read(page) for page in sorted((DOCS / "reference").glob("*.md")))
PAPER = DOCS / "paper.md"
EXAMPLES = [page for page in PAGES if pages.blocks(page, "text")]
PLACES = ("experiments/", "notebooks/", "profiling/", "elastic_tf/", "tests/")
WRITTEN = {"experiments/results/faults.json"}  # by `make faults`
TEST_NAMES = {
    path.name: {*re.findall(r"^ *(?:def|class) (\w+)", pages.read(path), re.MULTILINE)}
    for path in (ROOT / "tests").rglob("*.py")
}
ids = {"ids": pages.name}


def test_every_folder_is_in_the_reference() -> None:
    documented = set(re.findall(r"^\.\. room:: (\S+)$", REFERENCE, re.MULTILINE))
    home = ROOT / "elastic_tf"
    folders = {path.parent.relative_to(home) for path in home.rglob("*/__init__.py")}
    named = {".".join(folder.parts) for folder in folders}
    within = {one for one in named if any(one.startswith(f"{known}.") for known in documented)}
    # of rooms their folders are; commands show their help, the others are for those who change it
    assert {one for one in named - documented - within if not one.startswith("app.commands")} == {
        *("app", "choose", "methods", "train"),
        "stack",
    }


def test_every_function_and_class_has_a_docstring() -> None:
    bare = []
    for path in (ROOT / "elastic_tf").rglob("*.py"):
        for node in ast.parse(pages.read(path)).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not ast.get_docstring(node):
                bare += [] if node.name.startswith("_") else [f"{path}: {node.name}"]
    assert bare == []


def test_every_column_of_the_summary_is_explained() -> None:
    start = pages.read(DOCS / "start.md").partition("## What the summary says")[2]
    titles = [described(one)[2] for one in COLUMNS]
    assert [title for title in titles if f"`{title}`" not in start] == []


def test_every_command_is_in_the_reference() -> None:
    assert set(re.findall(r"^.. command:: (\S+)$", REFERENCE, re.M)) == set(COMMANDS)


def resolved(dotted: str) -> object:
    """What a name means: a module, or what it holds."""
    found: object = et
    for part in re.sub(r"\(.*\)$", "", dotted).split(".")[1:]:
        if not hasattr(found, part):
            fields = getattr(found, "__annotations__", {})
            home = getattr(found, "__name__", "")
            found = fields[part] if part in fields else importlib.import_module(f"{home}.{part}")
        else:
            found = getattr(found, part)
    return found


@pytest.mark.parametrize("page", TEXTS, **ids)
def test_names_in_code_exist(page: Path) -> None:
    for word in sorted(pages.code(page)):
        if re.fullmatch(r"(et|elastic_tf)(\.\w+)+(\(.*\))?", word):
            resolved(word)
        elif re.fullmatch(r"[A-Z]\w+\.\w+", word) and hasattr(et, word.partition(".")[0]):
            resolved(f"et.{word}")
        elif word.startswith("test_"):
            file, _, name = word.partition("::")
            if file.endswith(".py"):
                assert name == "" or name.partition("::")[2] or name in TEST_NAMES[file], word
            elif "*" not in file:
                assert any(file in names for names in TEST_NAMES.values()), word
        elif word.startswith(PLACES) and re.search(r"\.(py|md|json|ipynb)$", word):
            assert word in WRITTEN or (ROOT / word).exists(), word


def test_the_paper_is_covered_to_its_last_equation_section_figure_and_table() -> None:
    text = pages.read(PAPER)
    parts = [f"Eq. ({number})" for number in range(1, 9)]
    parts += [f"Figure {number}" for number in range(1, 24)] + ["Table 1", "Table 2"]
    counts = {1: 0, 2: 3, 3: 3, 4: 0, 5: 4, 6: 3, 7: 0, 8: 7, 9: 0, 10: 0}
    parts += [f"Sec. {number}" for number in counts]
    parts += [f"Sec. {one}.{two}" for one, most in counts.items() for two in range(1, most + 1)]
    rows = "\n".join(re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE))
    starts = {part: rf"^{re.escape(part)}(?!\w)" for part in parts}
    assert [one for one in parts if not re.search(starts[one], rows, re.MULTILINE)] == []


def test_figures_and_tables_of_the_paper_are_runs() -> None:
    words = pages.code(PAPER)
    named = {word.split()[1] for word in words if word.startswith("--figure ")}
    named -= {"NAME"}
    assert named <= set(paper_specs.FIGURES)
    numbers = [{name.rstrip("abcdef") for name in names} for names in (named, paper_specs.FIGURES)]
    assert numbers[0] == numbers[1]
    tables = {word.split()[1] for word in words if word.startswith("--table ")}
    assert tables == set(paper_specs.TABLES)


def test_methods_named_beside_the_paper_exist() -> None:
    rows = [row for row in pages.read(PAPER).splitlines() if re.search(r"\| methods? `", row)]
    named = {name for row in rows for name in re.findall(r"`([\w/]*:?\w+)`", row.split("|")[2])}
    assert len(named) >= 7
    assert all(baselines.get(name.replace("experiments/", "")) for name in named)


@pytest.mark.parametrize("page", TEXTS, **ids)
def test_links_lead_somewhere(page: Path) -> None:
    text = pages.FENCE.sub("", pages.read(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, place = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not place or place in pages.slugs(there), target


@pytest.mark.parametrize(
    "page",
    # trains for most of a minute what tests/test_fine_tuning.py tests with smaller networks
    [pytest.param(one, marks=[pytest.mark.hours] * (one.name == "tasks.md")) for one in EXAMPLES],
    **ids,
)
def test_examples_print_what_stands_below_them(page: Path) -> None:
    said = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(said):
        for block in pages.blocks(page, "python"):
            exec(block, names)
    assert said.getvalue() == "".join(pages.blocks(page, "text"))


@pytest.mark.parametrize("page", PAGES, **ids)
def test_code_calls_what_is_there_with_options_that_it_takes(page: Path) -> None:
    for block in pages.blocks(page, "python"):
        for call in ast.walk(ast.parse(block)):
            if isinstance(call, ast.Call) and re.fullmatch(r"et(\.\w+)+", ast.unparse(call.func)):
                taken = inspect.signature(resolved(ast.unparse(call.func))).parameters
                given = {word.arg for word in call.keywords}
                assert given <= set(taken) or "options" in taken, ast.unparse(call)


@pytest.mark.parametrize("page", TEXTS, **ids)
def test_commands_take_the_options_that_they_are_given(page: Path) -> None:
    for line in pages.read(page).replace("\\\n", " ").splitlines():
        found = re.search(r"(?:python -m elastic_tf|elastic-tf) (\w+) ([^`]*)", line)
        if found is None or found[1] not in COMMANDS:
            continue
        page = inspect.getmodule(command(found[1]))
        fields = getattr(page, found[1].capitalize()).__dataclass_fields__
        taken = {f"--{name.replace('_', '-')}" for name in fields}
        words = shlex.split(found[2].partition("#")[0], posix=False)
        assert {word for word in words if word.startswith("--")} <= {*taken, "--help"}, line


@pytest.mark.parametrize("page", TEXTS, **ids)
def test_targets_of_make_exist(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", pages.read(ROOT / "Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^    )make (\w+)", pages.read(page), re.MULTILINE))
    assert named <= targets
