"""The state folder of local mode: what is where."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK_HOME: Final = "FULCRUM_LOCAL_HOME"
"""Environment of every process that `fulcrum up` starts: which state folder it belongs to."""

EXIT_PORT_TAKEN: Final = 98
"""Exit code of an API server that cannot have its port (the number of EADDRINUSE)."""


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
    def apiserver_port(self) -> Path:
        """The port of the API server's last run, which kubeconfigs name."""
        return self.apiserver / "port"

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
    def dashboard(self) -> Path:
        """The URL of the dashboard, while it runs."""
        return self.root / "dashboard"

    @property
    def dashboard_port(self) -> int:
        """The dashboard's port, where it is free: it follows from the folder, so that open pages find it again."""
        return 8090 + self._slot

    @property
    def supervisor(self) -> Path:
        """The supervisor and its children: pid and start time of each."""
        return self.root / "supervisor.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor while it runs."""
        return self.root / "supervisor.lock"

    @property
    def pod_cidr(self) -> str:
        """Addresses of Pods: a 64th of 127.77.0.0/16 that follows from the folder, so that two homes do not meet."""
        return f"127.77.{4 * self._slot}.0/22"

    @property
    def service_cidr(self) -> str:
        """Addresses of Services: the same for 127.78.0.0/16."""
        return f"127.78.{4 * self._slot}.0/22"

    @property
    def _slot(self) -> int:
        return zlib.crc32(str(self.root).encode()) % 64

    def make(self) -> None:
        """Create the folders, for the owner only. Errors: OSError."""
        for folder in (self.root, self.apiserver, self.kubelet, self.logs):
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
