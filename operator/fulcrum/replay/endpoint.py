"""What must be known about an endpoint before a trace can be replayed against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fulcrum.replay.client import COMPLETIONS, Client, EndpointError
from fulcrum.replay.prompts import PromptWriter
from fulcrum.simulation.traffic import Request

_CALIBRATION_WORDS: Final = 256
_MOST_RETRIES: Final = 60
"""Workers that have just started may be thought too slow, until the first answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What was found out about an endpoint before the first request."""

    model: str
    tokens_per_word: float
    honours_ignore_eos: bool

    def body(self, prompt: str, output_tokens: int) -> bytes:
        """Streamed, greedy `/v1/completions` request for exactly `output_tokens` tokens, where that can be asked."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.honours_ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body)


async def discover(client: Client, *, model: str | None = None) -> Endpoint:
    """Model name, tokens per word, and whether `ignore_eos` is taken; costs one or two short requests.

    One that is turned away is sent again after its `Retry-After`. Raises EndpointError.
    """

    if model is None:
        _, models = await client.json("GET", "/v1/models", None)
        if not (listed := models.get("data")):
            raise EndpointError(f"{client.url}/v1/models lists no model; name one with --model")
        model = str(listed[0]["id"])
    request = Request(arrival_seconds=0, prompt_tokens=_CALIBRATION_WORDS, output_tokens=1)
    prompt = PromptWriter(tokens_per_word=1, seed=0).write(0, request)
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    status, answer = await client.json("POST", COMPLETIONS, body, accept=(200, 400, 422), max_retries=_MOST_RETRIES)
    honours_ignore_eos = status == 200
    if not honours_ignore_eos:
        del body["ignore_eos"]
        _, answer = await client.json("POST", COMPLETIONS, body, max_retries=_MOST_RETRIES)
    prompt_tokens = (answer.get("usage") or {}).get("prompt_tokens")
    if not prompt_tokens:
        raise EndpointError(f"{client.url}{COMPLETIONS} reports no usage, so prompt lengths cannot be calibrated")
    return Endpoint(
        model=model, tokens_per_word=prompt_tokens / _CALIBRATION_WORDS, honours_ignore_eos=honours_ignore_eos
    )
