"""The pages of the documentation, as text."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "elastic_tf" / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OTHERS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "experiments/README.md")
TEXTS = [*PAGES, *(ROOT / name for name in OTHERS)]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name(page: Path) -> str:
    """Of a page, below the root."""
    return page.relative_to(ROOT).as_posix()


def read(page: Path) -> str:
    """The text of a page."""
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of code in that language."""
    return [text for kind, text in FENCE.findall(read(page)) if kind == language]


def code(page: Path) -> set[str]:
    """What is set as code within lines."""
    return {found.strip() for found in re.findall(r"`([^`\n]+)`", FENCE.sub("", read(page)))}


def slugs(page: Path) -> set[str]:
    """The places of a page that can be linked to: headings, those of files in it too."""
    others = re.findall(r"^```\{include\} (\S+)$", read(page), re.MULTILINE)
    texts = [read(page), *(read((page.parent / other).resolve()) for other in others)]
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", "\n".join(texts)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
