"""What every test runs under."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Started in the background of a script, tests and what they start would ignore Ctrl-C; some try what it does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything loads numpy: its threads and ours would only wait for each other.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

# A slow example on a busy machine says nothing about the code; pytest's own time-out ends what hangs. On CI the same
# examples are tried each time, so that a red run is about the change; everywhere else new ones are looked for.
settings.register_profile(
    "fulcrum", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fulcrum")
if os.environ.get("CI"):
    # It would also try constants of all modules that are loaded, and those depend on how the tests are shared out.
    providers._get_local_constants = providers.Constants


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as images have it (hatch_build.py), for PYTHONPATH; compiling takes a minute."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("compiled") / "package"
    done = subprocess.run(
        [sys.executable, "hatch_build.py", str(folder)],
        check=False, capture_output=True, text=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder
