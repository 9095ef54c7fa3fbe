"""A browser for the tests of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from _loopback.browser import AXE, CHROMIUM, Tab, browser
from tests.machine import factor


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    """An empty page in a headless Chromium; nothing that a page logs as an error goes unseen."""
    if not CHROMIUM.exists() or not AXE.exists():
        pytest.skip(f"no browser in {CHROMIUM.parent} (requirements/chromium.sh says how it comes)")
    async with browser(patience=factor()) as opened:
        yield opened
        assert opened.errors == []
