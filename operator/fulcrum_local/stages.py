"""Which stage of its start each worker is in, as its agent says, and how long a start usually takes here."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fulcrum.api.ports import AgentAddress, agent_of
from fulcrum.api.worker import Stage

Json = dict[str, Any]

_ASK_SECONDS: Final = 1.0
_ANSWER_BYTES: Final = 64 * 1024
"""Bounds of one question to an agent."""
USUAL_FILE: Final = "start-seconds.json"
"""In the state folder: seconds from a Pod's start until its worker was ready, of the last `fulcrum up`."""


def stage_of(agent: AgentAddress) -> str | None:
    """What the agent says of its engine's start; None when it does not say. Blocks for a second at most."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        with urllib.request.urlopen(f"http://{agent}/load", timeout=_ASK_SECONDS) as answer:
            stage = json.loads(answer.read(_ANSWER_BYTES)).get("stage")
        return stage if isinstance(stage, str) else None
    return None


def usual_seconds(root: Path) -> float | None:
    """How long workers took to be ready when they were last started from this state folder; None: never, or unknown."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return float(json.loads((root / USUAL_FILE).read_text(encoding="utf-8"))) or None
    return None


def start_seconds(pod: Json) -> float | None:
    """Seconds from the Pod's start until it was ready; None where it is not, or has begun again since."""
    status = pod.get("status") or {}
    if any(each.get("restartCount") for each in status.get("containerStatuses") or []):
        return None
    for entry in status.get("conditions") or []:
        if entry.get("type") == "Ready" and entry.get("status") == "True" and status.get("startTime"):
            begun, ready = (
                dt.datetime.fromisoformat(text) for text in (status["startTime"], entry["lastTransitionTime"])
            )
            return (ready - begun).total_seconds()
    return None


@dataclass(slots=True, kw_only=True)
class Stages:
    """The stages of all workers of one `fulcrum up`."""

    root: Path
    _seen: dict[str, str] = field(default_factory=dict)
    _took: dict[str, float] = field(default_factory=dict)

    async def changes(self, pods: list[Json]) -> list[str]:
        """One line for each worker whose stage is another one than at the last call."""
        now = dt.datetime.now(dt.UTC)
        usual = usual_seconds(self.root)
        usually = f"; usually ready after about {usual:.0f} s" if usual is not None else ""
        starting = [pod for pod in pods if self._seen.get(pod["metadata"]["name"]) != Stage.READY]
        asked = await asyncio.gather(*map(self._ask, starting))
        lines = []
        for pod, said in zip(starting, asked, strict=True):
            name = pod["metadata"]["name"]
            if (took := start_seconds(pod)) is not None:
                self._took[name] = took
            stage = said if took is None else Stage.READY
            if stage is None or self._seen.get(name) == stage or (took is None and stage == Stage.READY):
                continue  # an agent is ready a moment before its Pod
            self._seen[name] = stage
            begun = (pod.get("status") or {}).get("startTime")
            after = (
                took if took is not None else (now - dt.datetime.fromisoformat(begun)).total_seconds() if begun else 0
            )
            lines.append(f"{name}: {stage} (after {after:.0f} s{'' if stage == Stage.READY else usually})")
        return lines

    async def _ask(self, pod: Json) -> str | None:
        agent = agent_of(pod)
        return await asyncio.to_thread(stage_of, agent) if agent is not None else None

    def remember(self) -> None:
        """Keep how long the slowest worker took, for the next start here."""
        if self._took:
            with contextlib.suppress(OSError):  # the figure is a comfort
                (self.root / USUAL_FILE).write_text(json.dumps(max(self._took.values())), encoding="utf-8")
