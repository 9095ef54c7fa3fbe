"""What a policy is: which workers start, what changes at a tick, which requests are let in, and where each goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy, AdmissionQueue, QosClass
from fulcrum.capacity.kv import TransferCost
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import LatencyTargets
from fulcrum.rollout import Action
from fulcrum.simulation.cluster import ClusterModel
from fulcrum.simulation.simulated_gateway import Chosen, SimulatedGateway
from fulcrum.simulation.simulated_request import SimulatedRequest

if TYPE_CHECKING:
    from fulcrum.simulation.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """What a tick decides, and when the next one is due; None: never again."""

    actions: Sequence[Action] = ()
    again_seconds: float | None = None


class Policy(ABC):
    """One way to run a cluster. One object runs one simulation.

    Requests go through the production router unless a policy brings its own: then `make_gateway` returns None, and
    `route` decides.
    """

    name: str
    admission: AdmissionPolicy = AdmissionPolicy.OFF
    """Of the gateway that `make_gateway` returns by default."""
    classes: Sequence[QosClass] = ()
    """Of that gateway's requests."""
    queue: AdmissionQueue | None = None
    """Where they wait before they are refused."""
    watches_pods: bool = False
    """A Pod that comes, goes or changes calls for a tick at once."""

    @abstractmethod
    def initial(self, cluster: ClusterModel) -> Sequence[tuple[str, Role]]:
        """Return the workers that are ready at second 0, as (pool, role)."""

    def make_gateway(self, cluster: ClusterModel, slo: LatencyTargets) -> SimulatedGateway | None:
        """Return the gateway; the default routes as production does, with this policy's admission."""
        return SimulatedGateway(
            slo=slo,
            speeds=known_speeds(cluster),
            transfers=expected_transfers(cluster),
            policy=self.admission,
            classes=self.classes,
            gateways=cluster.gateways,
            queue=self.queue,
        )

    def on_tick(self, view: View) -> TickResult:
        """Decide about roles and workers; called at second 0 and whenever the last turn asked for it."""
        return TickResult()

    def admit(self, request: SimulatedRequest, view: View) -> Reason | None:
        """Return why a request is turned away at its arrival; None lets it in."""
        return None

    def admit_decode(self, request: SimulatedRequest, view: View) -> Reason | None:
        """Return why a request is turned away between prefill and decode (its prefill is then wasted)."""
        return None

    def route(self, request: SimulatedRequest, view: View) -> Chosen | Reason:
        """Return the prefill and the decode worker of a policy without `make_gateway`."""
        raise NotImplementedError

    def on_end(self, request: SimulatedRequest, view: View) -> None:  # noqa: B027 - most policies do not care
        """Note that a request has ended, whatever became of it."""


def expected_transfers(cluster: ClusterModel) -> dict[str, TransferCost]:
    """Return what gateways believe of KV transfers before they have seen any, by pool."""
    return {pool.name: pool.expected_transfer for pool in cluster.pools if pool.expected_transfer is not None}


def known_speeds(cluster: ClusterModel) -> dict[str, WorkerSpeed]:
    """Return the speeds that agents would report, by pool."""
    return {pool.name: pool.speed for pool in cluster.pools if isinstance(pool.speed, WorkerSpeed)}
