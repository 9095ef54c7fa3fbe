"""What a kubelet is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletConfig:
    """Everything that `fulcrum kubelet` can be told."""

    node_name: str
    state_directory: Path
    pod_cidr: str = "127.77.0.0/16"
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, Any], ...] = ()
    extended_resources: dict[str, str] = field(default_factory=dict)
    pass_environment: tuple[str, ...] = ()
    log_bytes: int = 10 * 1024 * 1024
    sweep_orphans: bool = False
    """Kill children that this process did not start: only where this process is the kubelet alone, and a sub-reaper."""
