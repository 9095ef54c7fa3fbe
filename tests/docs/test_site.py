"""The documentation as a site: every link leads somewhere and every page is linked from another one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT, pages
from tests.machine import deadline_seconds

MKDOCS = Path(sys.executable).parents[1] / "mkdocs/bin/mkdocs"
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not MKDOCS.exists(), reason="mkdocs is not installed: make docs")
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [MKDOCS, "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=deadline_seconds(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages_made = list((tmp_path / "site").rglob("index.html"))
    assert len(pages_made) >= len(list(ROOT.glob("docs/**/*.md")))
    # A page that a browser opens asks no other server for anything.
    asked = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]+)"', pages_made[0].read_text())
    assert [url for url in asked if "canonical" not in url] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = {match[1] for match in _LINK.finditer(_CODE.sub("", page.read_text())) if "://" not in match[1]}
    assert sorted(target for target in targets if not (page.parent / target).exists()) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    asked = {
        (page.parent / match[1] if match[1] else page, match[2])
        for match in _LINK.finditer(_CODE.sub("", page.read_text()))
        if match[2] and "://" not in match[1] and match[1].endswith((".md", ""))
    }
    assert sorted(f"{target.name}#{anchor}" for target, anchor in asked if anchor not in anchors(target)) == []


def anchors(page: Path) -> set[str]:
    """The names that MkDocs gives to the headings of a page."""
    titles = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", title) for title in _HEADING.findall(page.read_text()))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_every_page_is_found_from_another_one() -> None:
    linked = {
        (page.parent / match[1]).resolve()
        for page in pages()
        for match in _LINK.finditer(_CODE.sub("", page.read_text()))
        if "://" not in match[1]
    }
    found = {page.resolve() for page in ROOT.glob("docs/**/*.md")} - {ROOT / "docs/README.md"}
    assert sorted(str(page.relative_to(ROOT)) for page in found - linked) == []


@pytest.mark.parametrize("page", [*pages(), ROOT / "mkdocs.yml"], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_merge_left_no_marker(page: Path) -> None:
    assert re.findall(r"^(?:<{7}|>{7}) .*", page.read_text(), re.MULTILINE) == []
