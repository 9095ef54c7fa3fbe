"""The Job that downloads a model's weights into the claim of `model.cache`, before workers need them."""

from __future__ import annotations

import hashlib
import math
from typing import Final

import msgspec

from fulcrum.api.internal_token import ENV_WORKER
from fulcrum.api.names import COMPONENT_PRELOAD, ENV_WORKER_CONFIG, Role, preload_name
from fulcrum.api.types import InferenceClusterSpec, Pool
from fulcrum.api.worker import LONGEST_START_FACTOR
from fulcrum.capacity.model_facts import ModelFacts
from fulcrum.capacity.start_timeout import start_timeout_seconds
from fulcrum.controller.children.owner import CONTAINER_SECURITY, Manifest, Owner, pod_identity_env
from fulcrum.controller.children.worker_pod import CONTAINER, worker_pod

_OF_THE_POD: Final = (
    "automountServiceAccountToken",
    "enableServiceLinks",
    "imagePullSecrets",
    "nodeSelector",
    "securityContext",
    "tolerations",
)
"""What the Pod of a worker has and that of the Job, too: it pulls the same image, writes as the same user, and may go
to the node of a claim that only one node has."""
_VOLUMES: Final = ("cache", "tmp")
_RESOURCES: Final[Manifest] = {
    "requests": {"cpu": "500m", "memory": "1Gi"},
    "limits": {"cpu": "4", "memory": "4Gi"},
}
_RETRIES: Final = 3
_KEPT_SECONDS: Final = 86_400
"""How long a Job and its log stay after its end. The status remembers what came of it."""


def preload_job(
    owner: Owner, spec: InferenceClusterSpec, pool: Pool, *, image: str, model: ModelFacts | None
) -> Manifest:
    """Return the Job; its name follows from claim, model and revision. `image` is used where the spec names none."""
    metadata = owner.metadata(job_name(owner, spec), COMPONENT_PRELOAD)
    made = worker_pod(owner, spec, pool, ordinal=0, role=Role.MIXED, image=image, model=model)["spec"]
    worker = next(each for each in made["containers"] if each["name"] == CONTAINER)
    not_its_own = {ENV_WORKER, ENV_WORKER_CONFIG, *(each["name"] for each in pod_identity_env())}
    revision = () if spec.model.revision is None else (f"--revision={spec.model.revision}",)
    container = {
        "name": COMPONENT_PRELOAD,
        **{name: worker[name] for name in ("image", "imagePullPolicy") if name in worker},
        "command": ["python3", "-m", "fulcrum_worker.preload", spec.model.name, *revision],
        "env": [each for each in worker["env"] if each["name"] not in not_its_own],
        "resources": _RESOURCES,
        "securityContext": dict(CONTAINER_SECURITY),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [each for each in worker["volumeMounts"] if each["name"] in _VOLUMES],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": _RETRIES,
            "activeDeadlineSeconds": math.ceil(LONGEST_START_FACTOR * start_timeout_seconds(spec, model)),
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {
                "metadata": {"labels": owner.labels(COMPONENT_PRELOAD)},
                "spec": {
                    **{name: made[name] for name in _OF_THE_POD if name in made},
                    "restartPolicy": "Never",
                    "containers": [container],
                    "volumes": [each for each in made["volumes"] if each["name"] in _VOLUMES],
                },
            },
        },
    }


def job_name(owner: Owner, spec: InferenceClusterSpec) -> str:
    """Return the name of the Job: another one for another claim, model or revision."""
    claim = spec.model.cache.persistent_volume_claim if spec.model.cache is not None else None
    made_from = msgspec.json.encode([claim, spec.model.name, spec.model.revision])
    return preload_name(owner.name, hashlib.sha256(made_from).hexdigest()[:8])
