"""What every test runs under."""

from __future__ import annotations

import os

from hypothesis import settings

# A slow example on a busy machine says nothing about the code; pytest's own time-out ends what hangs. On CI the same
# examples are tried each time, so that a red run is about the change; everywhere else new ones are looked for.
settings.register_profile("fulcrum", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("fulcrum")
