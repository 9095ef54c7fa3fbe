"""What is decided at a request's arrival: its class, its promise, whether it is let in, and its way."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Final

import msgspec

from fulcrum.admission import Admission, Admit, Preempt, Reject, RequestQueue, ThresholdLimits
from fulcrum.api.batch import KEY_HEADER
from fulcrum.api.durations import seconds
from fulcrum.api.gateway import GatewayConfig
from fulcrum.api.internal_token import is_authorized
from fulcrum.api.reasons import Reason
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.capacity.kv import TransferCost
from fulcrum.gateway.api_formats.inference_request import (
    INFERENCE_PATHS,
    POOLING_PATHS,
    TOKENIZING_PATHS,
    TPOT_HEADER,
    TTFT_HEADER,
    InferenceRequest,
)
from fulcrum.gateway.api_formats.prompt_estimate import PromptEstimate
from fulcrum.gateway.api_keys import AUTHORIZATION, X_API_KEY, ApiKey, KeyRing
from fulcrum.gateway.errors import (
    RequestError,
    adapter_broken,
    adapter_loading,
    bad_request,
    never_fits,
    no_worker,
    rejected,
)
from fulcrum.gateway.metrics.histogram import Histogram
from fulcrum.routing import Incoming, Route, WorkerView, decode_elsewhere, prefix_keys, route
from fulcrum.routing.view import DEFAULT_TPOT_SECONDS, DEFAULT_TTFT_SECONDS

_BEFORE_PROMPT: Final = ("cache_salt", "tools", "system", "instructions", "chat_template", "chat_template_kwargs")
"""Fields that come before a prompt, or with which an engine's prefix cache tells equal prompts apart."""
_GUARDED: Final = ("/v1/", *TOKENIZING_PATHS)
"""Beginnings of the paths that need a key, where keys are configured."""
_PREDICTIVE: Final = AdmissionPolicy.PREDICTIVE
_NO_LIMITS: Final = ThresholdLimits(queued_prompt_tokens=inf, kv_usage=inf, batch=inf)
"""While a speed is unknown nothing is predicted and no request is turned away."""
_WAIT_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_UNBOUNDED_TOKENS: Final = 1 << 62
_SHORTEST_PROMISE_SECONDS: Final = 1e-6
"""Latencies are divided by promises, and no worker keeps a shorter one."""


class AdmissionControl:
    """Admission and routing of one gateway."""

    def __init__(self, config: GatewayConfig, *, prefix_seed: int | None = None, token: str | None = None) -> None:
        """`prefix_seed`: gateways with the same one know each other's prefix keys; None: a random one.

        `token`: the cluster's, with which its batch process asks.
        """
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
        self.queue: RequestQueue | None = None
        """None: no request waits; it is let in at once or refused."""
        if spec.queue is not None:
            self.queue = RequestQueue(
                self.core, max_wait_seconds=seconds(spec.queue.max_wait), max_requests=spec.queue.max_requests
            )
        self.queue_wait_seconds = Histogram(_WAIT_SECONDS)
        """Of all requests that waited, whatever became of them."""
        self.degraded = [0] * len(self.core.classes)
        """Requests that may make less tokens than they asked for, by class."""
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
        self._token = token
        self._batch_class = None if config.batch is None else self.classes.index(config.batch.class_name)
        self.kept_headers: frozenset[bytes] = frozenset(
            name.encode()
            for name in (
                *self.classes.headers,
                TTFT_HEADER,
                TPOT_HEADER,
                *((AUTHORIZATION, X_API_KEY) if self.keys is not None else ()),
                *((KEY_HEADER,) if self._batch_class is not None else ()),
            )
        )
        """Headers of a request that are read here."""
        self.unpredicted = [0] * len(self.classes)
        """Requests that were let in without a prediction, because a speed was unknown, by class."""
        self.decides = spec.policy is not AdmissionPolicy.OFF
        """Requests may be turned away."""
        self._predicts = spec.policy is _PREDICTIVE
        self._prompts = {path: PromptEstimate() for path in (*INFERENCE_PATHS, *POOLING_PATHS)}
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
        if self._asks_for_key(headers):
            return self.keys.named(headers[KEY_HEADER])
        return self.keys.find(headers.get(AUTHORIZATION), headers.get(X_API_KEY))

    def _asks_for_key(self, headers: Mapping[str, str]) -> bool:
        """Whether the batch process asks on behalf of a key. It is known by the cluster's token."""
        return (
            self._batch_class is not None
            and self._token is not None
            and KEY_HEADER in headers
            and is_authorized(headers.get(AUTHORIZATION), self._token)
        )

    def class_of(self, key: ApiKey | None, headers: Mapping[str, str]) -> int:
        """Class of a request: by its headers; where keys are asked for, only as far as its key says."""
        classes = self.classes
        if key is None:
            return classes.match(headers)
        if self._batch_class is not None and self._asks_for_key(headers):
            return self._batch_class
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
        prompt_tokens = self._prompts[request.path].tokens(prompt, beside_bytes, request.measure_media())
        ttft_seconds = tpot_seconds = inf
        if headers:
            ttft_seconds = _promise(headers, TTFT_HEADER)
            tpot_seconds = _promise(headers, TPOT_HEADER)
        prefix: tuple[int, ...] = ()
        if not request.pools:  # its texts can be longer than the model together, and leave nothing behind
            prompt_tokens = min(prompt_tokens, self._max_model_len)
            before = b""
            if not request.fields.keys().isdisjoint(_BEFORE_PROMPT):
                before = b"\0".join(bytes(request.fields.get(name, b"")) for name in _BEFORE_PROMPT)
            if request.adapter:
                # KV that an adapter made is its own: no other may find it. A name has no control character.
                before = b"\1%b\1%b" % (request.adapter.encode(), before)
            prefix = prefix_keys(prompt, self._prefix_seed, before)
        return self.core.incoming(
            prompt_tokens=prompt_tokens,
            max_tokens=request.max_tokens,
            qos=qos,
            prefix=prefix,
            units_per_token=max(len(prompt) + beside_bytes, 1) / prompt_tokens,
            ttft_seconds=ttft_seconds,
            tpot_seconds=tpot_seconds,
            whole=request.whole,
            adapter=request.adapter,
        )

    def learn_prompt(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """A prompt had so many tokens."""
        self._prompts[request.path].learn(
            bytes(request.prompt), prompt_tokens, request.beside_bytes, request.measure_media()
        )

    def accepted(self, incoming: Incoming, decided: Admit | Preempt | Reject) -> Admit | Preempt:
        """Count a request that is let in, or refused for good.

        Raises RequestError where it is refused: 429, 503, or 400 where it would never fit.
        """
        if isinstance(decided, Reject):
            raise self.refusal(incoming, decided)
        if self._predicts and not decided.route.known:
            self.unpredicted[incoming.qos] += 1
        return decided

    def is_hopeless(self, incoming: Incoming) -> bool:
        """Whether a request asks for an adapter that no worker can load: waiting does not help."""
        return bool(incoming.adapter) and self.cluster.workers.none_can_load(incoming.adapter)

    def detour(self, incoming: Incoming, exclude: frozenset[str], now: float) -> Route | None:
        """A path without admission, for a request that was held or lost its worker; None: there is none."""
        # As in admission: waiting makes no path better.
        fresh = msgspec.structs.replace(incoming, exclude=exclude, waited_seconds=0.0)
        found = route(fresh, self.cluster, now)
        return found if isinstance(found, Route) else None

    def decode_elsewhere(
        self, incoming: Incoming, prefill: WorkerView, exclude: frozenset[str], now: float
    ) -> Route | None:
        """Another decode worker for a request whose KV `prefill` holds; None: there is none."""
        fresh = msgspec.structs.replace(incoming, exclude=exclude, waited_seconds=0.0)
        return decode_elsewhere(fresh, prefill, self.cluster, now)

    def refusal(self, incoming: Incoming, decided: Reject) -> RequestError:
        """Count a request that is refused for good, and return what its client is told."""
        self.core.refuse(incoming, decided)
        if decided.reason is Reason.NO_WORKER:
            if incoming.adapter:
                hopeless = self.is_hopeless(incoming)
                return adapter_broken(incoming.adapter) if hopeless else adapter_loading(incoming.adapter)
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
