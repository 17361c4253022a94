"""The documentation is built without a warning and needs nothing from anywhere else."""

import importlib.util
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pages import DOCS, PAGES, ROOT

import elastic_tf as et

NEEDED = ("sphinx", "myst_parser", "furo")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"pip install '.[docs]' brings {MISSING}"),
]


class Links(HTMLParser):
    """What a page links to, loads, and can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element says."""
        values = {key: value for key, value in attrs if value}
        self.places |= {values["id"]} if "id" in values else set()
        self.links |= {values["href"]} if tag == "a" and "href" in values else set()
        if tag in {"script", "img", "link", "iframe", "source"}:
            self.loaded |= {values[key] for key in ("src", "href") if key in values}


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


@pytest.fixture(scope="module")
def links(built: Path) -> dict[Path, Links]:
    """Of every page; those that show the code itself left out."""
    found = [page for page in built.rglob("*.html") if "_modules" not in page.parts]
    return {page: Links(page) for page in found}


def test_every_page_is_built(built: Path) -> None:
    for page in PAGES:
        assert (built / page.relative_to(DOCS)).with_suffix(".html").is_file(), page


def test_every_link_within_the_pages_leads_somewhere(links: dict[Path, Links]) -> None:
    lost = []
    for page, found in links.items():
        for target in found.links | found.loaded:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            place = unquote(parts.fragment)
            if not there.exists() or (
                place and there in links and place not in links[there].places
            ):
                lost.append(f"{page.name}: {target}")
    assert lost == []


def test_every_public_name_has_a_place_in_the_reference(links: dict[Path, Links]) -> None:
    places = {place for found in links.values() for place in found.places}
    public = {name: getattr(et, name) for name in et.__all__}
    names = {
        getattr(one, "__name__", "") if inspect.ismodule(one) else f"elastic_tf.{name}"
        for name, one in public.items()
    }
    assert {name for name in names if not places & {name, f"module-{name}"}} == set()


def test_nothing_is_loaded_from_elsewhere(built: Path, links: dict[Path, Links]) -> None:
    loaded = {target for page in links.values() for target in page.loaded}
    assert [target for target in loaded if urlsplit(target).netloc] == []
    for style in built.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text("utf-8"))
