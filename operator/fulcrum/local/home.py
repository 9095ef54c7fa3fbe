"""The state folder of local mode: what is where."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK_HOME: Final = "FULCRUM_LOCAL_HOME"
"""Environment of every process that `fulcrum up` starts: which state folder it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Paths below one state folder."""

    root: Path

    @classmethod
    def find(cls) -> Home:
        """`$FULCRUM_HOME`, else `$XDG_STATE_HOME/fulcrum`, else `~/.local/state/fulcrum`."""
        own = os.environ.get("FULCRUM_HOME")
        if own:
            return cls(root=Path(own).expanduser().absolute())
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return cls(root=Path(state).expanduser().absolute() / "fulcrum")

    @property
    def apiserver(self) -> Path:
        """The API server's state: database, certificates, tokens."""
        return self.root / "apiserver"

    @property
    def kubelet(self) -> Path:
        """The process kubelet's state: Pods, their logs and volumes."""
        return self.root / "kubelet"

    @property
    def logs(self) -> Path:
        """Logs of the processes that `fulcrum up` starts."""
        return self.root / "logs"

    @property
    def install(self) -> Path:
        """Copy of the manifests that were applied last."""
        return self.root / "install"

    @property
    def kubeconfig(self) -> Path:
        """Administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def supervisor(self) -> Path:
        """Who the supervisor and its children are: pid and start time of each."""
        return self.root / "supervisor.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor while it runs."""
        return self.root / "supervisor.lock"

    def make(self) -> None:
        """Create the folders, for the owner only. Errors: OSError."""
        for folder in (self.root, self.apiserver, self.kubelet, self.logs):
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
