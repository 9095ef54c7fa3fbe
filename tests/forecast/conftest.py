"""One thread for BLAS: on matrices as small as these, more threads only wait for each other."""

from __future__ import annotations

import os

# Read when numpy is imported, which these tests are the first to do when they run alone.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
