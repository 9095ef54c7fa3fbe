"""`fulcrum up`, step by step: what is starting, how far it is, what to do next."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console
from rich.status import Status

from fulcrum.api.names import KIND
from fulcrum.capacity.cpu import CPUINFO
from fulcrum.kube import Api, ApiFailure, ConfigError
from fulcrum.kube.readiness import Awaited, awaited, condition, is_current, is_true, is_worker_of, trouble
from fulcrum_local.home import Home
from fulcrum_local.install import InstallError, apply, install_operator
from fulcrum_local.launch import dashboard_url, is_running, log_tail, start_supervisor
from fulcrum_local.preflight import cannot_run
from fulcrum_local.stages import Stages
from fulcrum_local.supervisor import NODE_NAME

Json = dict[str, Any]

_START_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
_STAGE_SECONDS: Final = 1.0
"""How often workers that start are asked for their stage."""
_DASHBOARD_SECONDS: Final = 10.0
"""How long `fulcrum up` waits for the dashboard's URL: it takes some 2 s from the start of the API server."""
_OPERATOR: Final = Awaited(
    kind="Deployment",
    namespace="fulcrum-system",
    name="fulcrum-operator",
    path="/apis/apps/v1/namespaces/fulcrum-system/deployments/fulcrum-operator",
    condition="Available",
)


class BringUpError(Exception):
    """Something did not come up; the message says what, and where to look."""


class BringUp:
    """One run of `fulcrum up`."""

    def __init__(self, home: Home, console: Console, *, chaos_seed: int | None = None) -> None:
        self._home = home
        self._chaos_seed = chaos_seed
        self._console = console
        self._shown_troubles: set[str] = set()
        self._stages = Stages(root=home.root)
        self._stages_asked_at = 0.0

    async def run(self, files: Sequence[Path], *, wait: bool, timeout_seconds: float, operator: bool) -> None:
        """Bring everything up. Errors: BringUpError."""
        documents = [document for file in files for document in _documents(file)]
        cpuinfo = CPUINFO.read_text(errors="replace") if CPUINFO.is_file() else ""
        if refusals := list(cannot_run(documents, cpuinfo)):
            raise BringUpError("\n".join(refusals))
        with self._console.status("Starting ...") as status:
            api = await self._start(status)
            try:
                if operator:
                    await self._install(status)
                for file in files:
                    await self._apply(file)
                if not wait:
                    await self._say_dashboard()
                    return
                deadline = time.monotonic() + timeout_seconds
                if operator:
                    await self._wait(api, _OPERATOR, status, deadline=deadline)
                for item in awaited(documents):
                    await self._wait(api, item, status, deadline=deadline)
                self._stages.remember()
                clusters = [await api.get(item.path) for item in awaited(documents) if item.kind == KIND]
            finally:
                await api.close()
        self._say_what_next(clusters)
        await self._say_dashboard()

    async def _start(self, status: Status) -> Api:
        """The API server answers and the node is ready."""
        begun = time.monotonic()
        deadline = begun + _START_SECONDS
        if is_running(self._home):
            if self._chaos_seed is not None:
                raise BringUpError("Kubernetes runs already: `fulcrum down` first, --chaos is set when it starts")
            self._done("Kubernetes runs already")
        else:
            status.update("Starting the Kubernetes API server, controllers and kubelet ...")
            try:
                start_supervisor(self._home, self._chaos_seed)
            except OSError as error:
                raise BringUpError(f"cannot start in {self._home.root}: {error}") from error
        api = None
        while api is None or not await self._node_ready(api):
            if time.monotonic() > deadline:
                raise BringUpError(self._why_not_started())
            await asyncio.sleep(0.05)
            if api is None and self._home.kubeconfig.is_file():
                opened = Api(self._home.kubeconfig)
                try:
                    await opened.connect()
                except ConfigError:  # half written
                    continue
                api = opened
        self._done(f"Kubernetes is ready ({time.monotonic() - begun:.1f}s)")
        return api

    async def _node_ready(self, api: Api) -> bool:
        try:
            return is_true(await api.get(f"/api/v1/nodes/{NODE_NAME}"), "Ready")
        except ApiFailure:
            return False

    def _why_not_started(self) -> str:
        parts = [f"the local Kubernetes did not start within {_START_SECONDS:.0f}s. Logs are in {self._home.logs}:"]
        for name in ("supervisor", "apiserver", "controllers", "kubelet"):
            tail = log_tail(self._home.logs / f"{name}.log", lines=5)
            if tail:
                parts.append(f"--- {name}\n{tail}")
        return "\n".join(parts)

    async def _install(self, status: Status) -> None:
        status.update("Installing the operator ...")
        try:
            await asyncio.to_thread(install_operator, self._home)
        except (InstallError, OSError) as error:
            raise BringUpError(f"could not install the operator: {error}") from error
        self._done("CustomResourceDefinition, permissions and operator are installed")

    async def _apply(self, file: Path) -> None:
        try:
            said = await asyncio.to_thread(apply, self._home, "-f", str(file))
        except InstallError as error:
            raise BringUpError(f"{file} was refused:\n{error}") from error
        for line in said.splitlines():
            self._done(line)

    async def _wait(self, api: Api, item: Awaited, status: Status, *, deadline: float) -> None:
        begun = time.monotonic()
        while True:
            progress = ""
            try:
                current = await api.get(item.path)
                progress = await self._progress(api, item, current)
                if is_current(current) and is_true(current, item.condition):
                    self._done(f"{item.title} is {item.condition.lower()} ({time.monotonic() - begun:.1f}s)")
                    return
            except ApiFailure as error:
                progress = str(error)
            seconds = time.monotonic() - begun
            status.update(f"{item.title}: {progress or 'starting'} ({seconds:.0f}s)")
            if time.monotonic() > deadline:
                raise BringUpError(
                    f"{item.title} is not {item.condition.lower()} after {seconds:.0f}s: {progress or 'no word'}\n"
                    "It goes on starting; look again with: fulcrum status"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _progress(self, api: Api, item: Awaited, current: Json) -> str:
        """How far it is, in a few words; troubles are printed once each as they come up."""
        pods = (await api.get(f"/api/v1/namespaces/{item.namespace}/pods")).get("items") or []
        if item.kind == KIND:
            pods = [pod for pod in pods if is_worker_of(pod, item.name)]
            await self._say_stages(pods)
        else:
            pods = [pod for pod in pods if pod["metadata"]["name"].startswith(item.name)]
        for text in filter(None, map(trouble, pods)):
            if text not in self._shown_troubles:
                self._shown_troubles.add(text)
                self._console.print(f"  ! {text}", style="yellow", markup=False)
        degraded = condition(current, "Degraded") if is_true(current, "Degraded") else None
        ready = sum(is_true(pod, "Ready") for pod in pods)
        progress = f"{ready} of {len(pods)} {'workers' if item.kind == KIND else 'Pods'} ready"
        return f"{progress}; {degraded['reason']}: {degraded.get('message', '')}" if degraded else progress

    async def _say_stages(self, pods: list[Json]) -> None:
        if time.monotonic() - self._stages_asked_at >= _STAGE_SECONDS:
            for line in await self._stages.changes(pods):
                self._console.print(f"  {line}", markup=False, highlight=False)
            self._stages_asked_at = time.monotonic()

    def _done(self, text: str) -> None:
        self._console.print(f"  [green]✓[/] {text}" if self._console.is_terminal else f"  {text}")

    def _say_what_next(self, clusters: list[Json]) -> None:
        for item in clusters:
            endpoint = (item.get("status") or {}).get("endpoint", "")
            served = item["spec"]["model"].get("servedName") or item["metadata"]["name"]
            body = json.dumps(
                {"model": served, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
            )
            self._print(
                f"\n{item['metadata']['name']} answers at {endpoint}\n\n"
                f"  curl {endpoint}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{body}'"
            )
        self._print(
            "\n  fulcrum status                                  # clusters, workers, processes\n"
            "  export KUBECONFIG=$(fulcrum kubeconfig --path)  # then: kubectl get ic\n"
            "  fulcrum down                                    # stop everything"
        )

    async def _say_dashboard(self) -> None:
        """Print where the page is; it starts beside the rest, and nothing depends on it."""
        deadline = time.monotonic() + _DASHBOARD_SECONDS
        while not (url := dashboard_url(self._home)) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        if url:
            self._print(f"\n  {url}   # all clusters on one page")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _documents(file: Path) -> list[Json]:
    """What is in the file, flattened; kubectl judges it later. Errors: BringUpError when it is no YAML."""
    try:
        loaded = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise BringUpError(f"{file} cannot be read as YAML: {error}") from error
    documents: list[Json] = []
    for document in loaded:
        inside = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else [document]
        if not isinstance(inside, list):
            raise BringUpError(f"{file}: List: items must be a list: write the objects below items:, each after a dash")
        documents.extend(each for each in inside if isinstance(each, dict))
    return documents
