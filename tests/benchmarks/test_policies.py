"""What `benchmarks/policies.py --results` keeps is used again only for the same code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_digest_takes_every_package_that_a_run_has_loaded() -> None:
    from policies import imported_packages

    program = (
        "import sys; import policies; from fulcrum.simulation.generate import WORKLOADS\n"
        "case = next(each for each in policies.cases(policies.SHARED_TRACES) if each.name == 'stationary')\n"
        "policies.run(case, case.load().between(300, 330), ('ours', 'static-4:4'))\n"
        "names = [name.split('.') for name in sys.modules]\n"
        "print(*sorted({name[1] for name in names if name[0] == 'fulcrum' and len(name) > 1}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"load", "performance", "kv", "simulation"} <= loaded
    assert loaded <= set(imported_packages())


def test_the_digest_changes_with_a_package_that_only_others_import(tmp_path: Path) -> None:
    from policies import PACKAGE, code_digest

    copy = tmp_path / "fulcrum"
    shutil.copytree(PACKAGE, copy, ignore=lambda _folder, names: [name for name in names if "__pycache__" in name])
    assert code_digest(copy) == code_digest()
    for changed in ("load/demand.py", "performance/fluid.py", "kv/restore.py"):
        before = code_digest(copy)
        (copy / changed).write_text((copy / changed).read_text() + "\n# changed\n")
        assert code_digest(copy) != before
