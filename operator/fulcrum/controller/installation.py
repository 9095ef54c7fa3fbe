"""What an operator was told about its own installation; the same for all clusters that it serves."""

from __future__ import annotations

from dataclasses import dataclass

from fulcrum import __version__
from fulcrum.api.amd import is_amd
from fulcrum.api.names import OPERATOR_NAMESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Values that hold where a spec says nothing; none of them is written into an InferenceCluster."""

    worker_image: str = f"ghcr.io/fulcrum/worker:{__version__}"
    rocm_worker_image: str = f"ghcr.io/fulcrum/worker-rocm:{__version__}"
    """Of workers on AMD's accelerators."""
    gateway_image: str = f"ghcr.io/fulcrum/fulcrum:{__version__}"
    namespace: str = OPERATOR_NAMESPACE
    """Namespace of the operator's own Pod."""
    allow_privileged_templates: bool = False
    """Pod templates of pools may exceed the Pod Security level `restricted`."""
    templates_may_use: frozenset[str] = frozenset()
    """Service accounts, Secrets and labels that Pod templates of pools may name: `ServiceAccount/NAME` and so on."""
    allow_remote_code: bool = False
    """Engines may run code from models' repositories (`model.trustRemoteCode`)."""
    allow_host_access: bool = False
    """Workers may run as root for RDMA, and use the network of their nodes (`rdma.runAsRoot`, `rdma.hostNetwork`)."""
    open_workers: bool = False
    """Replace workers that ask for a token by ones that ask for none: before going back to a release without it."""

    def worker_image_for(self, accelerator: str) -> str:
        """Return the image of workers whose spec names none."""
        return self.rocm_worker_image if is_amd(accelerator) else self.worker_image
