"""What a spec of a pooling model cannot have, as CEL rules: it makes no tokens, and moves no KV."""

from __future__ import annotations

from typing import Final

from fulcrum.api.base import Rules, rule
from fulcrum.api.engine_types import Transfer
from fulcrum.api.serving_types import Slo

_GENERATES: Final = "self.model.task != 'Pooling'"
_TRANSFER: Final = Transfer()
_PLAIN_TRANSFER: Final = (
    f"self.engine.transfer.loadFailurePolicy == '{_TRANSFER.load_failure_policy.value}'"
    f" && self.engine.transfer.backends == {list(_TRANSFER.backends)}"
)


def _refused(unless: str, message: str) -> dict[str, str]:
    """Return the rule that a pooling model must have `unless`."""
    return rule(f"{_GENERATES} || {unless}", message)


POOLING_RULES: Final[Rules] = (
    _refused(
        "self.pools.all(p, size(p.roles) == 1 && p.roles[0] == 'mixed')",
        "pools[].roles: a pooling model has no decode, so its workers have one role; set roles: [mixed] in every pool, "
        "or model.task: Generate",
    ),
    _refused(
        "self.engine.kvCache.dtype == 'auto' && (!has(self.engine.kvCache.skipLayers) ||"
        " size(self.engine.kvCache.skipLayers) == 0)",
        "engine.kvCache.dtype, engine.kvCache.skipLayers: a pooling model keeps no KV between steps; remove them",
    ),
    _refused(
        "!has(self.adapters)",
        "adapters: a pooling model is served without adapters; remove it",
    ),
    _refused(
        "!has(self.engine.kvCache.offload)",
        "engine.kvCache.offload: a pooling model keeps no KV that could be restored; remove it",
    ),
    _refused(
        _PLAIN_TRANSFER,
        "engine.transfer: workers of a pooling model exchange no KV; remove it",
    ),
    _refused(
        "(!has(self.engine.mediaDomains) || size(self.engine.mediaDomains) == 0)",
        "engine.mediaDomains: the routes of a pooling model take text and token ids; remove it",
    ),
    _refused(
        f"self.slo.tpot == '{Slo().tpot}'",
        "slo.tpot: a pooling model makes no tokens; remove it, and promise the time to the answer in slo.ttft",
    ),
)
"""Rules over the spec."""
