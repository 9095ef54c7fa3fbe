"""Whether this machine has a GPU that torch can use."""

from __future__ import annotations


def why_skipped() -> str | None:
    """Why nothing can be measured here; None: there is a GPU."""
    try:
        import torch
    except ImportError:
        return "skipped: torch is not installed (pip install torch)"
    return None if torch.cuda.is_available() else "skipped: torch sees no CUDA device"
