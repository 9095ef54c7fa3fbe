"""`pods/log`, `pods/eviction` and `pods/binding`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from fulcrum_local.apiserver import errors
from fulcrum_local.apiserver.bodies import checked
from fulcrum_local.apiserver.budgets import refusing_budget
from fulcrum_local.apiserver.call import Call, answer
from fulcrum_local.apiserver.deleting import Deleter, parse_delete_options
from fulcrum_local.apiserver.errors import ApiError, Json
from fulcrum_local.apiserver.presentation import encode
from fulcrum_local.apiserver.store import Store, Stored
from fulcrum_local.apiserver.times import now_text
from fulcrum_local.apiserver.writing import Writer

logger = logging.getLogger(__name__)
_LOG_PARAMETERS: Final = ("follow", "previous", "sinceSeconds", "sinceTime", "tailLines", "timestamps", "limitBytes")
_SUCCESS: Final[Json] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class _Eviction(msgspec.Struct, rename="camel"):
    metadata: dict[str, Any] | None = None
    delete_options: dict[str, Any] | None = None


class _Node(msgspec.Struct):
    name: str = ""


class _Binding(msgspec.Struct):
    target: _Node | None = None


class PodSubresources:
    """What can be done to a Pod besides reading and writing it."""

    def __init__(self, store: Store, writer: Writer, deleter: Deleter, kubelet_token: Callable[[], str]) -> None:
        """`kubelet_token` returns what this server shows to kubelets."""
        self._store, self._writer, self._deleter = store, writer, deleter
        self._kubelet_token = kubelet_token
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections to kubelets."""
        if self._session is not None:
            await self._session.close()

    def _pod(self, call: Call) -> Stored:
        stored = self._store.get("pods", call.target.namespace, call.target.name)
        if stored is None:
            raise errors.not_found("", "pods", call.target.name)
        return stored

    async def log(self, call: Call) -> web.StreamResponse:
        """Stream a container's log through from the kubelet of the Pod's node."""
        pod = self._pod(call).obj
        container = _container(pod, call.query.get("container", ""))
        url = self._kubelet_url(pod)
        if url is None:
            return web.Response(text="")  # not scheduled, so nothing has been printed
        namespace, name = call.target.namespace, call.target.name
        parameters = {name: call.query[name] for name in _LOG_PARAMETERS if name in call.query}
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, connect=10))
        headers = {"Authorization": f"Bearer {self._kubelet_token()}"}
        # Kubelets sign their own certificates; as a real API server without `--kubelet-certificate-authority`, this one
        # does not check them.
        try:
            async with self._session.get(
                f"{url}/containerLogs/{namespace}/{name}/{container}", params=parameters, headers=headers, ssl=False
            ) as upstream:
                if upstream.status != 200:
                    raise ApiError(upstream.status, (await upstream.text()).strip() or "the kubelet refused")
                response = web.StreamResponse(headers={"Content-Type": "text/plain"})
                response.enable_chunked_encoding()
                await response.prepare(call.request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if call.request.transport is None or call.request.transport.is_closing():
                raise asyncio.CancelledError from error  # the reader has gone
            raise ApiError(500, f"Get {url}/containerLogs/{namespace}/{name}/{container}: {error}") from None

    def _kubelet_url(self, pod: Json) -> str | None:
        node_name = pod["spec"].get("nodeName")
        if not node_name:
            return None
        node = self._store.get("nodes", "", node_name)
        if node is None:
            raise ApiError(500, f'nodes "{node_name}" not found')
        status = node.obj.get("status", {})
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        addresses = status.get("addresses") or ()
        address = next((entry["address"] for entry in addresses if entry["type"] == "InternalIP"), None)
        if port is None or address is None:
            raise ApiError(500, f'the kubelet of node "{node_name}" has not published its address')
        return f"https://{address}:{port}"

    async def evict(self, call: Call) -> web.StreamResponse:
        """Delete a Pod unless a PodDisruptionBudget forbids that now."""
        body = checked(call.body(), _Eviction)
        stored = self._pod(call)
        options = parse_delete_options(body.get("deleteOptions"), call.query)
        budget = refusing_budget(self._store, stored.obj)
        if budget is not None:
            raise budget
        if not options.dry_run and not stored.obj["metadata"].get("deletionTimestamp"):
            self._store.put("pods", _disrupted(stored.obj))
        self._deleter.delete(call.kind, call.target.namespace, call.target.name, options)
        return answer(call, encode(_SUCCESS), 201)

    async def bind(self, call: Call) -> web.StreamResponse:
        """Assign a Pod to a node."""
        node = (checked(call.body(), _Binding).get("target") or {}).get("name")
        if not node:
            causes = [errors.required_value("target.name")]
            raise errors.invalid("", "Binding", call.target.name, causes)
        stored = self._pod(call)
        pod = stored.obj
        name = call.target.name
        if pod["spec"].get("nodeName"):
            why = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
            raise errors.conflict("", "pods/binding", name, why)
        if pod["metadata"].get("deletionTimestamp"):
            raise errors.conflict(
                "", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host"
            )
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": now_text(),
        }
        status = pod.get("status") or {}
        others = [entry for entry in status.get("conditions") or () if entry["type"] != "PodScheduled"]
        bound: dict[str, Any] = {
            **pod,
            "metadata": dict(pod["metadata"]),
            "spec": {**pod["spec"], "nodeName": node},
            "status": {**status, "conditions": [*others, scheduled]},
        }
        if not call.write_options().dry_run:
            self._store.put("pods", bound)
        return answer(call, encode(_SUCCESS), 201)


def _disrupted(pod: Json) -> Json:
    """The Pod with the condition that says what ends it."""
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": now_text(),
    }
    status = pod.get("status") or {}
    others = [entry for entry in status.get("conditions") or () if entry["type"] != "DisruptionTarget"]
    return {**pod, "metadata": dict(pod["metadata"]), "status": {**status, "conditions": [*others, target]}}


def _container(pod: Json, asked: str) -> str:
    names = [entry["name"] for field in ("initContainers", "containers") for entry in pod["spec"].get(field) or ()]
    name = pod["metadata"]["name"]
    if asked:
        if asked not in names:
            raise errors.bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(names) > 1:
        listed = " ".join(names)
        raise errors.bad_request(f"a container name must be specified for pod {name}, choose one of: [{listed}]")
    return str(names[0])
