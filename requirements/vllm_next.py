"""Put the Python sources of the newest vLLM wheel into a folder: `python vllm_next.py FOLDER`.

The wheel is 340 MB and stays in a temporary folder; nothing of it is installed, and nothing of it runs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64", "manylinux1_x86_64")


def main(folder: Path) -> None:
    """Download, unpack, and say which release it is."""
    with tempfile.TemporaryDirectory() as scratch:
        platforms = [part for name in PLATFORMS for part in ("--platform", name)]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, *platforms, "--python-version", "3.12", "--dest", scratch, "vllm"], check=True)
        (wheel,) = Path(scratch).glob("vllm-*.whl")
        shutil.rmtree(folder, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            sources = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            archive.extractall(folder, sources)
        print(f"{wheel.name}: {len(sources)} sources in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
