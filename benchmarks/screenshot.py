"""Screenshots of the dashboard: of a made-up fleet, or with --url of one that runs (`fulcrum up` prints its URL).

The figures of the made-up fleet show what the page looks like; they say nothing about Fulcrum.

    python benchmarks/screenshot.py                                    # docs/images/dashboard-*.png
    python benchmarks/screenshot.py --url http://127.0.0.1:8090/dashboard --folder /tmp
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from _loopback.browser import CHROMIUM, Tab, browser
from _loopback.played_fleet import played_dashboard

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOTS = (
    ("dashboard-light", "light", 1360, 900, False),
    ("dashboard-dark", "dark", 1360, 900, False),
    ("dashboard-phone", "dark", 400, 860, True),
)
"""Name, colour scheme, width and height in CSS pixels, whether it is a phone."""


async def shoot(tab: Tab, url: str, folder: Path, cluster: str) -> None:
    """Take all screenshots."""
    for name, scheme, width, height, mobile in SHOTS:
        await tab.size(width, height, mobile=mobile, scale=2 if mobile else 1)
        await tab.scheme(scheme)
        await tab.open("about:blank")
        await tab.open(f"{url}#{cluster}" if cluster else url)
        await tab.until("document.querySelectorAll('.chart path.line').length > 4")
        path = folder / f"{name}.png"
        await tab.screenshot(path)
        print(f"{path} ({path.stat().st_size / 1024:.0f} kB)")
    if tab.errors:
        sys.exit(f"the page logged errors: {tab.errors}")


async def main() -> None:
    """Parse arguments and take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the dashboard to show; default: a made-up fleet")
    parser.add_argument("--cluster", help="namespace/name of the cluster to show; default: the one in most trouble")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    parser.add_argument("--clusters", type=int, default=8, help="clusters of the made-up fleet")
    parser.add_argument("--workers", type=int, default=9, help="workers of each of them")
    arguments = parser.parse_args()
    if not CHROMIUM.exists():
        sys.exit("no browser: run `sh requirements/chromium.sh` first")
    async with browser() as tab:
        if arguments.url:
            await shoot(tab, arguments.url, arguments.folder, arguments.cluster or "")
            return
        async with played_dashboard(clusters=arguments.clusters, workers=arguments.workers) as url:
            await shoot(tab, url, arguments.folder, arguments.cluster or "serving/chat")


if __name__ == "__main__":
    asyncio.run(main())
