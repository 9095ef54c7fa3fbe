"""Follows worker Pods: list, then watch, for ever; what was last known stays while the API server is away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import AsyncGenerator
from functools import lru_cache
from typing import Any, Final, Protocol, cast

import httpx2
import msgspec
from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.resources.core_v1 import Pod

from fulcrum.api import names
from fulcrum.api.names import Role
from fulcrum.api.worker import WorkerConfig
from fulcrum.gateway.config import Settings
from fulcrum.gateway.metrics import Metrics
from fulcrum.gateway.worker_record import WorkerRecord
from fulcrum.gateway.workers import WorkerView

logger = logging.getLogger(__name__)

# A new LIST now and then prunes what a watch may have missed (and notices a watch that is dead without saying so).
_RESYNC_SECONDS: Final = 120.0
_SERVER_TIMEOUT_SECONDS: Final = 300
_FIRST_BACKOFF_SECONDS: Final = 0.1
_LONGEST_BACKOFF_SECONDS: Final = 5.0


class Follower(Protocol):
    """Whose view is kept."""

    settings: Settings
    view: WorkerView
    metrics: Metrics
    watch_connected: bool


def record_of(pod: Pod) -> WorkerRecord | None:
    """The worker that a Pod is; None while no request may go to it."""
    metadata, status = pod.metadata, pod.status
    if metadata is None or status is None or metadata.deletionTimestamp is not None or not metadata.name:
        return None
    if status.phase != "Running" or not status.podIP:
        return None
    if not any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions or ()):
        return None
    try:
        role = Role((metadata.labels or {}).get(names.LABEL_ROLE, ""))
    except ValueError:
        return None
    epoch = (metadata.annotations or {}).get(names.ANNOTATION_ROLE_EPOCH, "0")
    restarts = sum(container.restartCount for container in status.containerStatuses or ())
    return WorkerRecord(
        name=metadata.name,
        role=role,
        role_epoch=int(epoch) if epoch.isdigit() else 0,
        host=status.podIP,
        port=names.PORT_ENGINE,
        agent_port=names.PORT_AGENT,
        incarnation=f"{metadata.uid}/{restarts}",
        pool=(metadata.labels or {}).get(names.LABEL_POOL, ""),
        revision=_revision(pod),
        node=(pod.spec.nodeName if pod.spec is not None else None) or "",
    )


def _revision(pod: Pod) -> str:
    """What the format of a worker's KV depends on. The hash on the Pod will not do: each pool has its own."""
    for container in pod.spec.containers if pod.spec is not None else ():
        for variable in container.env or ():
            if variable.name == names.ENV_WORKER_CONFIG and variable.value:
                return _kv_format(container.image or "", variable.value)
    return ""


@lru_cache(maxsize=256)
def _kv_format(image: str, document: str) -> str:
    try:
        config = msgspec.json.decode(document, type=WorkerConfig)
    except msgspec.DecodeError:  # of another version
        return document
    kv = config.kv_cache
    return repr((image, config.model, kv.dtype, kv.block_size, config.transfer.connector, config.engine_args))


async def watch_workers(follower: Follower) -> None:
    """Keep `follower.view` equal to the usable worker Pods of its cluster; returns only when cancelled."""
    backoff_seconds = _FIRST_BACKOFF_SECONDS
    client: AsyncClient | None = None
    while True:
        began_at = asyncio.get_running_loop().time()
        cause = "resync"
        try:
            if client is None:  # a new one reads the credentials anew
                client = AsyncClient(namespace=follower.settings.namespace, timeout=httpx2.Timeout(10.0))
            await _list_and_watch(follower, client)
        except TimeoutError:
            pass
        except ApiError as error:
            cause = "gone" if error.status.code == 410 else f"status_{error.status.code}"
        except (httpx2.HTTPError, OSError, ssl.SSLError) as error:
            cause = "connection"
            logger.debug("watch_connection_error error=%r", error)
        except ConfigError as error:
            cause = "config"
            logger.warning("watch_config_error error=%s", error)
        except Exception:  # the edge: whatever the API server sends, the gateway must go on following it
            cause = "unexpected"
            logger.exception("watch_failed")
        follower.watch_connected = False
        follower.metrics.watch_restarts[cause] += 1
        if cause == "resync":
            backoff_seconds = _FIRST_BACKOFF_SECONDS
            continue
        if asyncio.get_running_loop().time() - began_at > _LONGEST_BACKOFF_SECONDS:
            backoff_seconds = _FIRST_BACKOFF_SECONDS
        if client is not None:
            await client.close()
            client = None
        logger.warning("watch_broken cause=%s workers_kept=%d", cause, len(follower.view.workers))
        await asyncio.sleep(backoff_seconds * random.uniform(0.5, 1.0))  # noqa: S311  (jitter, no secret)
        backoff_seconds = min(2 * backoff_seconds, _LONGEST_BACKOFF_SECONDS)


async def _list_and_watch(follower: Follower, client: AsyncClient) -> None:
    """Raises TimeoutError when it is time for another list."""
    view = follower.view
    labels: dict[str, Any] = {
        names.LABEL_CLUSTER: follower.settings.config.cluster,
        names.LABEL_COMPONENT: names.COMPONENT_WORKER,
    }
    async with asyncio.timeout(_RESYNC_SECONDS):
        listed = client.list(Pod, labels=labels)
        records = [record_of(pod) async for pod in listed]
        view.replace(record for record in records if record is not None)
        follower.watch_connected = True
        events = client.watch(
            Pod, labels=labels, resource_version=listed.resourceVersion, server_timeout=_SERVER_TIMEOUT_SECONDS
        )
        async with contextlib.aclosing(cast("AsyncGenerator[tuple[str, Pod], None]", events)) as stream:
            async for operation, pod in stream:
                _apply(view, operation, pod)


def _apply(view: WorkerView, operation: str, pod: Pod) -> None:
    if operation not in ("ADDED", "MODIFIED", "DELETED"):
        return
    record = None if operation == "DELETED" else record_of(pod)
    if record is not None:
        view.put(record)
    elif pod.metadata is not None and pod.metadata.name:
        view.remove(pod.metadata.name, "deleted" if operation == "DELETED" else "not_usable")
