"""Which image new workers run where the spec names none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from fulcrum.api.names import Role
from fulcrum.api.reasons import Reason
from fulcrum.api.types import InferenceClusterSpec
from fulcrum.controller.apply import Applier
from fulcrum.controller.children import Manifest, Owner, worker_pod
from fulcrum.controller.installation import Installation
from fulcrum.controller.kube import Kube
from fulcrum.controller.metrics import Metrics
from fulcrum.controller.observed import Observed, running_images
from fulcrum.rollout import CreateWorker

OWNER = Owner(name="c", namespace="ns", uid="u")
OLD = "ghcr.io/fulcrum/worker:0.0.9"


class Recorder:
    """Takes what is created."""

    def __init__(self) -> None:
        self.created: list[Manifest] = []

    async def create(self, _: object, manifest: Manifest) -> Manifest:
        self.created.append(manifest)
        return {"metadata": {"uid": "new"}}


def make_spec(**engine: Any) -> InferenceClusterSpec:
    pools = [{"name": "p", "accelerator": "cpu", "workers": {"max": 2}}]
    return msgspec.convert({"model": {"name": "m"}, "pools": pools, "engine": engine}, InferenceClusterSpec)


@pytest.mark.parametrize(
    ("standing", "wanted", "image"),
    [
        # The operator was upgraded; nothing else changed: the next worker is like those that stand.
        (make_spec(), make_spec(), OLD),
        # Another revision is made with the new release.
        (make_spec(), make_spec(args=["--seed=1"]), Installation().worker_image),
        (None, make_spec(), Installation().worker_image),
        (make_spec(), make_spec(image="mine:1"), "mine:1"),
    ],
)
async def test_workers_of_one_revision_run_one_image(
    standing: InferenceClusterSpec | None, wanted: InferenceClusterSpec, image: str
) -> None:
    pods = ()
    if standing is not None:
        pods = (worker_pod(OWNER, standing, standing.pools[0], ordinal=0, role=Role.DECODE, image=OLD),)
    observed = Observed(cluster={}, pods=pods, deployment=None, service=None)
    recorder = Recorder()
    applier = Applier(
        cast("Kube", recorder),
        Metrics(),
        OWNER,
        wanted,
        images=running_images(observed),
        installation=Installation(),
        token_fingerprint="f1",
    )
    create = CreateWorker(pool="p", ordinal=1, name="c-p-1", role=Role.PREFILL, reason=Reason.WORKER_CREATED)
    await applier.carry_out([create], now=datetime.now(UTC), changed=lambda _: None)
    assert [pod["spec"]["containers"][0]["image"] for pod in recorder.created] == [image]
