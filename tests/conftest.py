"""What every test runs under."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.image_build import CONTROL_PLANE, build, build_stage

pytest_plugins = ("tests.run_report",)

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
    """A folder with what the control plane's image installs, for PYTHONPATH.

    Compiling takes two minutes: the processes of a test run (xdist) share it.
    """
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    done = folder / "compiled" / "done"
    with (folder / "compiled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            build(CONTROL_PLANE, done.parent, compiled=build_stage(CONTROL_PLANE).compile)
            done.touch()
    return done.parent / "installed"
