"""The copy that `benchmarks/gateway.py --tracing` compares with: its edits still meet the code."""

from __future__ import annotations

import compileall
from pathlib import Path

from _loopback.without_tracing import PACKAGE, copy_without_tracing


def test_each_edit_meets_the_code(tmp_path: Path) -> None:
    copy = copy_without_tracing(tmp_path) / "fulcrum"
    changed = [
        path.relative_to(PACKAGE).name
        for path in sorted((PACKAGE / "gateway").rglob("*.py"))
        if path.read_bytes() != (copy / path.relative_to(PACKAGE)).read_bytes()
    ]
    assert changed == ["accounting.py", "leg.py", "serve.py"]
    assert compileall.compile_dir(copy / "gateway" / "dispatch", quiet=1)
