"""What every test runs under."""

from __future__ import annotations

import os
import signal

# Started in the background of a script, tests and what they start would ignore Ctrl-C; some try what it does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything loads numpy: its threads and ours would only wait for each other.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from hypothesis import settings  # noqa: E402

# A slow example on a busy machine says nothing about the code; pytest's own time-out ends what hangs. On CI the same
# examples are tried each time, so that a red run is about the change; everywhere else new ones are looked for.
settings.register_profile("fulcrum", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("fulcrum")
