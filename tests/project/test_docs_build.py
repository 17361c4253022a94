"""The documentation is built without a warning and needs nothing from anywhere else."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, PAGES, ROOT

import elastic_tf as et

NEEDED = ("sphinx", "myst_parser", "furo")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"pip install '.[docs]' brings {MISSING}"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built as `make docs` builds them."""
    folder = tmp_path_factory.mktemp("docs")
    options = "-W --keep-going -q -b html -d".split() + [str(folder / "trees")]
    options += ["-c", str(ROOT / ".ci" / "docs")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder / "html")],
        capture_output=True,
        text=True,
    )
    # warnings are errors; TensorFlow writes lines of its own beside them
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def html(built: Path) -> str:
    """Of all pages; those that show the code itself left out."""
    pages = (page for page in built.rglob("*.html") if "_modules" not in page.parts)
    return "\n".join(page.read_text("utf-8") for page in pages)


def test_every_page_is_built_and_has_every_public_name(built: Path) -> None:
    for page in PAGES:
        assert (built / page.relative_to(DOCS)).with_suffix(".html").is_file(), page
    places = {*re.findall(r'\bid="([^"]+)"', html(built))}
    public = {name: getattr(et, name) for name in et.__all__}
    names = {
        getattr(one, "__name__", "") if inspect.ismodule(one) else f"elastic_tf.{name}"
        for name, one in public.items()
    }
    assert {name for name in names if not places & {name, f"module-{name}"}} == set()


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    loads = r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=[\"'](?:https?:)?//[^>]*"
    assert re.findall(loads, html(built)) == []
    for style in built.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text("utf-8"))
