"""What every test runs under."""

from __future__ import annotations

from hypothesis import settings

# A slow example on a busy machine says nothing about the code; pytest's own time-out ends what hangs.
settings.register_profile("fulcrum", deadline=None)
settings.load_profile("fulcrum")
