"""The models of a front: names, keys, limits, and which clusters serve each of them. Compiled (hatch_build.py)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

import msgspec

from fulcrum.api.front import FrontRoute, FrontRoutes
from fulcrum.api.reasons import Reason
from fulcrum.front.choice import Choice
from fulcrum.gateway.api_keys import AUTHORIZATION, X_API_KEY, Allowance, ApiKey, KeyRing
from fulcrum.gateway.errors import RequestError, model_not_found
from fulcrum.gateway.front.asked import no_model


class Model:
    """One model."""

    __slots__ = ("_allowance", "adapter", "choice", "keys", "route")

    def __init__(self, route: FrontRoute, replicas: int) -> None:
        self.route = route
        self.adapter = _as_json(route.adapter)
        """What its clusters are sent as `model`, as JSON; None: their served names."""
        self.choice = Choice(*_choice_of(route))
        self.keys = KeyRing(Path(route.api_keys_directory), gateways=replicas) if route.api_keys_directory else None
        self._allowance = Allowance(route.requests_per_minute, route.tokens_per_minute, replicas)

    def change(self, route: FrontRoute, replicas: int) -> None:
        """Its route is this from now on. Its conversations stay, and so does what was counted of unchanged limits."""
        before, self.route = self.route, route
        self.adapter = _as_json(route.adapter)
        self.choice.change(*_choice_of(route))
        if route.api_keys_directory != before.api_keys_directory:
            self.keys = KeyRing(Path(route.api_keys_directory), gateways=replicas) if route.api_keys_directory else None
        limits = (route.requests_per_minute, route.tokens_per_minute)
        if limits != (before.requests_per_minute, before.tokens_per_minute):
            self._allowance = Allowance(*limits, replicas)

    @property
    def counts_tokens(self) -> bool:
        """A limit on it or on its keys can be of tokens."""
        return self.keys is not None or self.route.tokens_per_minute is not None

    def share(self, replicas: int, now: float) -> None:
        """So many fronts share the limits."""
        self._allowance.share(replicas, now)
        if self.keys is not None:
            self.keys.share(replicas, now)

    def authenticate(self, headers: Mapping[str, str]) -> ApiKey | None:
        """The key of a request; None: none is asked for. Raises RequestError (401)."""
        if self.keys is None:
            return None
        return self.keys.find(headers.get(AUTHORIZATION), headers.get(X_API_KEY))

    def charge(self, key: ApiKey | None, tokens: float, now: float) -> None:
        """Count a request of so many tokens. Raises RequestError (429) over the limit of the key or the model."""
        wait_seconds = self._allowance.wait_seconds(tokens, now)
        if wait_seconds > 0:
            raise RequestError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"The model `{self.route.name}` is over its rate limit. Retry later.",
                code="rate_limited",
                reason=Reason.RATE_LIMITED,
                retry_after_seconds=wait_seconds,
            )
        if key is not None:
            key.charge(tokens, now)
        self._allowance.take(tokens)

    def correct(self, key: ApiKey | None, tokens: float) -> None:
        """A request came to so many tokens more than it was counted for (or fewer, when negative)."""
        self._allowance.correct(tokens)
        if key is not None:
            key.correct(tokens)


class Models:
    """All models, by each of their names."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._by_name: dict[str, Model] = {}
        self._replicas = 1

    def __len__(self) -> int:
        return len(self._models)

    def change(self, routes: FrontRoutes, now: float) -> None:
        """These are the models from now on. A request that has begun keeps the model that it began with."""
        self._replicas = max(routes.replicas, 1)
        models = {}
        for route in routes.models:
            model = self._models.get(route.name)
            if model is None:
                model = Model(route, self._replicas)
            else:
                model.change(route, self._replicas)
            model.share(self._replicas, now)
            models[route.name] = model
        self._models = models
        aliases = {alias: model for model in models.values() for alias in model.route.aliases}
        self._by_name = aliases | models

    def find(self, name: str | None) -> Model:
        """The model of a name or alias; without one, the only model. Raises RequestError (400, 404)."""
        if name is None:
            if len(self._models) == 1:
                return next(iter(self._models.values()))
            raise no_model(list(self._models))
        model = self._by_name.get(name)
        if model is None:
            raise model_not_found(name)
        return model

    def names_for(self, headers: Mapping[str, str]) -> list[str]:
        """Names and aliases of the models that a client may ask."""
        return [name for model in self._models.values() if _may_ask(model, headers) for name in _names(model.route)]

    def refresh_keys(self) -> None:
        """Read the API keys again. Reads files."""
        for model in list(self._models.values()):
            if model.keys is not None:
                model.keys.refresh()

    def share_keys(self, now: float) -> None:
        """To be called after `refresh_keys`, which may run in a thread."""
        for model in self._models.values():
            if model.keys is not None:
                model.keys.share(self._replicas, now)


def _choice_of(route: FrontRoute) -> tuple[dict[str, int], tuple[str, ...]]:
    return {backend.cluster: backend.weight for backend in route.backends}, route.fallback


def _as_json(name: str | None) -> bytes | None:
    return None if name is None else msgspec.json.encode(name)


def _names(route: FrontRoute) -> tuple[str, ...]:
    return (route.name, *route.aliases)


def _may_ask(model: Model, headers: Mapping[str, str]) -> bool:
    try:
        model.authenticate(headers)
    except RequestError:
        return False
    return True
