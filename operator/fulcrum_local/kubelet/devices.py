"""Which container has which GPU: `nvidia.com/gpu` limits become CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from fulcrum_local.kubelet.environment import ConfigError
from fulcrum_local.kubelet.processes import read_json, write_private

GPU: Final = "nvidia.com/gpu"


class Devices:
    """GPUs 0 to count - 1 of this machine; which Pod has which is kept in `state_file` across restarts."""

    def __init__(self, count: int, state_file: Path) -> None:
        self._count = count
        self._file = state_file
        self._taken: dict[str, list[int]] = read_json(state_file) or {}
        """`<Pod uid>/<container>` -> device numbers."""

    def variables(self, uid: str, container: str, *, count: int) -> dict[str, str]:
        """Variables of a container that asks for `count` GPUs; the same ones at each restart.

        Where GPUs are announced, a container that asks for none sees none. Errors: ConfigError when too few are free.
        """
        if not self._count:
            return {}
        key = f"{uid}/{container}"
        if count and key not in self._taken:
            used = {number for numbers in self._taken.values() for number in numbers}
            free = [number for number in range(self._count) if number not in used]
            if len(free) < count:
                raise ConfigError(f"{count} {GPU} wanted, {len(free)} of {self._count} free")
            self._taken[key] = free[:count]
            self._save()
        visible = ",".join(map(str, self._taken.get(key, [])))
        return {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible or "void"}

    def release(self, uid: str) -> None:
        """Give back what a Pod's containers had."""
        kept = {key: numbers for key, numbers in self._taken.items() if not key.startswith(f"{uid}/")}
        if kept != self._taken:
            self._taken = kept
            self._save()

    def _save(self) -> None:
        write_private(self._file, json.dumps(self._taken))
