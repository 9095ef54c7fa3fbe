"""A browser for the tests of the page, and the modules of `benchmarks/` that drive it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.machine import factor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from _loopback.browser import AXE, CHROMIUM, Tab, browser


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    """An empty page in a headless Chromium; nothing that a page logs as an error goes unseen."""
    if not CHROMIUM.exists() or not AXE.exists():
        pytest.skip(f"no browser in {CHROMIUM.parent} (requirements/chromium.sh says how it comes)")
    async with browser(patience=factor()) as opened:
        yield opened
        assert opened.errors == []
