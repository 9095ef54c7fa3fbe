"""What is decided at a request's arrival: its class, its promise, whether it is let in, and its way."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Final

import msgspec

from fulcrum.admission import Admission, Admit, Preempt, Reject, ThresholdLimits
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.capacity.kv import TransferCost
from fulcrum.gateway.api_keys import AUTHORIZATION, X_API_KEY, ApiKey, KeyRing
from fulcrum.gateway.errors import RequestError, bad_request, never_fits, no_worker, rejected
from fulcrum.gateway.openai.inference_request import (
    INFERENCE_PATHS,
    TOKENIZING_PATHS,
    TPOT_HEADER,
    TTFT_HEADER,
    InferenceRequest,
)
from fulcrum.gateway.openai.prompt_estimate import PromptEstimate
from fulcrum.routing import Incoming, Route, WorkerView, decode_elsewhere, prefix_keys, route
from fulcrum.routing.view import DEFAULT_TPOT_SECONDS, DEFAULT_TTFT_SECONDS

_BEFORE_PROMPT: Final = ("cache_salt", "tools", "system", "instructions", "chat_template", "chat_template_kwargs")
"""Fields that come before a prompt, or with which an engine's prefix cache tells equal prompts apart."""
_GUARDED: Final = ("/v1/", *TOKENIZING_PATHS)
"""Beginnings of the paths that need a key, where keys are configured."""
_PREDICTIVE: Final = AdmissionPolicy.PREDICTIVE
_NO_LIMITS: Final = ThresholdLimits(queued_prompt_tokens=inf, kv_usage=inf, batch=inf)
"""While a speed is unknown nothing is predicted and no request is turned away."""
_UNBOUNDED_TOKENS: Final = 1 << 62
_SHORTEST_PROMISE_SECONDS: Final = 1e-6
"""Latencies are divided by promises, and no worker keeps a shorter one."""


class AdmissionControl:
    """Admission and routing of one gateway."""

    def __init__(self, config: GatewayConfig, *, prefix_seed: int | None = None) -> None:
        """`prefix_seed`: gateways with the same one know each other's prefix keys; None: a random one."""
        self._prefix_seed = secrets.randbits(64) if prefix_seed is None else prefix_seed
        spec = config.admission
        self.core = Admission(
            spec.policy,
            spec.classes,
            ttft_seconds=config.slo_ttft_seconds or DEFAULT_TTFT_SECONDS,
            tpot_seconds=config.slo_tpot_seconds or DEFAULT_TPOT_SECONDS,
            attainment=config.slo_attainment,
            limits=_NO_LIMITS if spec.policy is _PREDICTIVE else None,
        )
        directory = config.api_keys_directory
        self.keys = None if directory is None else KeyRing(Path(directory))
        """None: any client may ask."""
        self.cluster = self.core.new_view()
        self.cluster.workers.set_pools({pool.name: pool.admits for pool in config.pools})
        for pool in config.pools:
            if pool.transfer is not None:
                cost = TransferCost(
                    base_seconds=pool.transfer.base_seconds, seconds_per_token=pool.transfer.seconds_per_token
                )
                self.cluster.transfers.expect(pool.name, cost)
        self.classes = self.core.classes
        self.kept_headers: frozenset[bytes] = frozenset(
            name.encode()
            for name in (
                *self.classes.headers,
                TTFT_HEADER,
                TPOT_HEADER,
                *((AUTHORIZATION, X_API_KEY) if self.keys is not None else ()),
            )
        )
        """Headers of a request that are read here."""
        self.unpredicted = [0] * len(self.classes)
        """Requests that were let in without a prediction, because a speed was unknown, by class."""
        self.decides = spec.policy is not AdmissionPolicy.OFF
        """Requests may be turned away."""
        self._predicts = spec.policy is _PREDICTIVE
        self._prompts = {path: PromptEstimate() for path in INFERENCE_PATHS}
        self._max_model_len = config.max_model_len or _UNBOUNDED_TOKENS

    def share(self, gateways: int, now: float) -> None:
        """So many gateways share the traffic and the limits of keys from now on."""
        self.core.share(gateways)
        if self.keys is not None:
            self.keys.share(gateways, now)

    def authenticate(self, path: str, headers: Mapping[str, str]) -> ApiKey | None:
        """The key of a request; None where none is needed. Raises RequestError (401)."""
        if self.keys is None or not path.startswith(_GUARDED):
            return None
        return self.keys.find(headers.get(AUTHORIZATION), headers.get(X_API_KEY))

    def class_of(self, key: ApiKey | None, headers: Mapping[str, str]) -> int:
        """Class of a request: by its headers; where keys are asked for, only as far as its key says."""
        classes = self.classes
        if key is None:
            return classes.match(headers)
        if key.class_name is not None:
            index = classes.index(key.class_name)
            return classes.rest if index is None else index
        wanted = classes.match(headers)
        # Asking for less needs no leave.
        if classes.names[wanted] in key.classes or classes.priorities[wanted] <= classes.priorities[classes.rest]:
            return wanted
        return classes.rest

    def incoming(self, request: InferenceRequest, qos: int, headers: Mapping[str, str]) -> Incoming:
        """A request as admission and routing see it. Raises RequestError (400) for a promise that cannot be read."""
        prompt = bytes(request.prompt)
        beside_bytes = request.beside_bytes
        prompt_tokens = min(
            self._prompts[request.path].tokens(prompt, beside_bytes, request.measure_media()), self._max_model_len
        )
        ttft_seconds = tpot_seconds = inf
        if headers:
            ttft_seconds = _promise(headers, TTFT_HEADER)
            tpot_seconds = _promise(headers, TPOT_HEADER)
        before = b""
        if not request.fields.keys().isdisjoint(_BEFORE_PROMPT):
            before = b"\0".join(bytes(request.fields.get(name, b"")) for name in _BEFORE_PROMPT)
        return self.core.incoming(
            prompt_tokens=prompt_tokens,
            max_tokens=request.max_tokens,
            qos=qos,
            prefix=prefix_keys(prompt, self._prefix_seed, before),
            units_per_token=max(len(prompt) + beside_bytes, 1) / prompt_tokens,
            ttft_seconds=ttft_seconds,
            tpot_seconds=tpot_seconds,
            whole=request.whole,
        )

    def learn_prompt(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """A prompt had so many tokens."""
        self._prompts[request.path].learn(
            bytes(request.prompt), prompt_tokens, request.beside_bytes, request.measure_media()
        )

    def decide(self, incoming: Incoming, now: float) -> Admit | Preempt:
        """Let a request in. Raises RequestError (429, 503, or 400 where it would never fit)."""
        decided = self.core.decide(incoming, self.cluster, now)
        if isinstance(decided, Reject):
            raise self._refusal(decided)
        if self._predicts and not decided.route.known:
            self.unpredicted[incoming.qos] += 1
        return decided

    def detour(self, incoming: Incoming, exclude: frozenset[str], now: float) -> Route | None:
        """Another path for a request that was let in before and lost its worker; None: there is none."""
        found = route(msgspec.structs.replace(incoming, exclude=exclude), self.cluster, now)
        return found if isinstance(found, Route) else None

    def decode_elsewhere(
        self, incoming: Incoming, prefill: WorkerView, exclude: frozenset[str], now: float
    ) -> Route | None:
        """Another decode worker for a request whose KV `prefill` holds; None: there is none."""
        return decode_elsewhere(msgspec.structs.replace(incoming, exclude=exclude), prefill, self.cluster, now)

    def _refusal(self, decided: Reject) -> RequestError:
        if decided.reason is Reason.NO_WORKER:
            known = bool(self.cluster.workers.by_name)
            return no_worker("No worker that may take this request is ready." if known else "No worker is ready.")
        if decided.reason is Reason.NEVER_FITS:
            return never_fits()
        return rejected(decided.reason, decided.retry_after_seconds, decided.numbers)


def _promise(headers: Mapping[str, str], name: str) -> float:
    """Seconds of a header in milliseconds; infinite where there is none."""
    text = headers.get(name)
    if text is None:
        return inf
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if milliseconds <= 0 or not isfinite(milliseconds):
        raise bad_request(f"The header `{name}` must be a number of milliseconds above 0.", param=name)
    return max(milliseconds / 1000, _SHORTEST_PROMISE_SECONDS)
