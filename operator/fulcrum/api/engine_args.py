"""Extra vLLM arguments (`spec.engine.args`): which are refused, and what to use instead.

Refused is what opens a hole in a worker (code, files, listeners), what another field of the spec owns, and what breaks
the contract between worker, gateway and operator. The agent checks with `check_engine_args`, the API server with the
CEL rules that `cel_rules` makes from the same table.

vLLM's parser (argparse with abbreviations; `_` and `-` are one; `--x.key v` is a JSON field of `--x`) takes many
spellings of one argument, so names are compared in normal form, and any abbreviation of a refused name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_LENGTH: Final = 1024
"""Longest item of `spec.engine.args`, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgProblem:
    """One item that is refused."""

    index: int
    argument: str
    """The item up to its value, as it was written."""
    message: str
    """What to use instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    names: tuple[str, ...]
    instead: str

    @property
    def message(self) -> str:
        return f"{', '.join('--' + name for name in self.names)}: {self.instead}"


_REFUSALS: Final = (
    # Owned by another field.
    _Refusal(names=("model",), instead="set spec.model.name"),
    _Refusal(names=("served-model-name",), instead="set spec.model.servedName"),
    _Refusal(names=("max-model-len",), instead="set spec.model.maxModelLen"),
    _Refusal(names=("hf-token",), instead="set spec.model.credentials"),
    _Refusal(names=("download-dir",), instead="set spec.model.cache"),
    _Refusal(names=("tensor-parallel-size",), instead="set spec.pools[].parallelism.tensor"),
    _Refusal(names=("pipeline-parallel-size",), instead="set spec.pools[].parallelism.pipeline"),
    _Refusal(names=("kv-cache-dtype",), instead="set spec.engine.kvCache.dtype"),
    _Refusal(names=("attention-backend",), instead="set spec.engine.attentionBackend"),
    _Refusal(names=("block-size",), instead="set spec.engine.kvCache.blockSize"),
    _Refusal(names=("kv-cache-memory-bytes", "num-gpu-blocks-override"), instead="set spec.engine.kvCache.memory"),
    _Refusal(names=("kv-offloading-size", "kv-offloading-backend"), instead="set spec.engine.kvCache.offload"),
    _Refusal(
        names=("kv-transfer-config", "ec-transfer-config", "weight-transfer-config", "kv-events-config"),
        instead="transfers between workers are Fulcrum's; set spec.engine.transfer",
    ),
    _Refusal(names=("allowed-media-domains",), instead="set spec.engine.mediaDomains"),
    _Refusal(names=("otlp-traces-endpoint",), instead="set spec.telemetry.tracing with engine: true"),
    _Refusal(
        names=("enable-lora", "lora-modules", "max-loras", "max-lora-rank", "max-cpu-loras"),
        instead="set spec.adapters",
    ),
    _Refusal(names=("api-key",), instead="only the gateway talks to a worker; remove it"),
    # The shape of a worker.
    _Refusal(
        names=(
            "data-parallel-size",
            "data-parallel-size-local",
            "data-parallel-rank",
            "data-parallel-start-rank",
            "data-parallel-address",
            "data-parallel-rpc-port",
            "data-parallel-backend",
            "data-parallel-hybrid-lb",
            "data-parallel-external-lb",
            "data-parallel-multi-port-external-lb",
            "data-parallel-supervisor-port",
            "enable-elastic-ep",
            "api-server-count",
        ),
        instead="set spec.pools[].parallelism.data, or raise spec.pools[].workers for more engines",
    ),
    _Refusal(
        names=("nnodes", "node-rank", "master-addr", "master-port", "headless", "prefill-context-parallel-size"),
        instead="set spec.pools[].parallelism and spec.pools[].gpu.perNode; remove it",
    ),
    _Refusal(names=("device-ids",), instead="Kubernetes assigns the GPUs; remove it"),
    # How a worker is reached.
    _Refusal(
        names=("host", "port", "uds", "fd", "grpc", "grpc-port", "root-path", "enable-scale-out"),
        instead="a worker listens on its Pod's address; set spec.pools[].ports, or remove it",
    ),
    _Refusal(
        names=("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers", "enable-ssl-refresh"),
        instead="workers speak plain HTTP to the gateway; end TLS in front of the gateway",
    ),
    _Refusal(
        names=("allowed-origins", "allowed-methods", "allowed-headers", "allow-credentials"),
        instead="browsers reach the gateway and never a worker; remove it",
    ),
    # What the gateway and the agent count on.
    _Refusal(
        names=("tokens-only", "skip-tokenizer-init"),
        instead="workers must answer chat and completions; remove it",
    ),
    _Refusal(names=("runner", "convert"), instead="set spec.model.task"),
    _Refusal(names=("disable-log-stats",), instead="the worker's load is read from these metrics; remove it"),
    _Refusal(
        names=("scheduling-policy",), instead="workers serve by the priority of spec.admission.classes; remove it"
    ),
    _Refusal(names=("shutdown-timeout",), instead="set spec.balance.flip.drainTimeout"),
    # Code that the image did not bring.
    _Refusal(
        names=("trust-remote-code",),
        instead="it runs code from the model's repository; set spec.model.trustRemoteCode and spec.model.revision",
    ),
    _Refusal(
        names=("model-class-overrides",),
        instead="it runs code that the image did not bring; use a model whose architecture the engine has",
    ),
    _Refusal(
        names=(
            "middleware",
            "logits-processors",
            "tool-parser-plugin",
            "reasoning-parser-plugin",
            "io-processor-plugin",
            "worker-cls",
            "worker-extension-cls",
            "scheduler-cls",
            "ec-manager-config",
            "distributed-executor-backend",
        ),
        instead="it loads code into the engine; build a worker image that brings it, and set spec.engine.image",
    ),
    _Refusal(names=("tool-server",), instead="it runs tools inside the worker; run them in the client"),
    _Refusal(names=("config",), instead="it reads arguments from a file, unchecked; list them here"),
    _Refusal(names=("logging-config", "log-config-file"), instead="use --log-level"),
    # Files and requests of others.
    _Refusal(
        names=("allowed-local-media-path",),
        instead="clients could read the worker's files; send media in the request",
    ),
    _Refusal(
        names=("trust-request-chat-template", "trust-request-mm-kwargs"),
        instead="it lets clients run templates or code options in the worker; remove it",
    ),
    _Refusal(
        names=("enable-prompt-embeds", "enable-mm-embeds"),
        instead="it lets clients send serialized tensors; send text or media",
    ),
    _Refusal(names=("chat-template",), instead="put chat_template.jinja into the model's folder"),
    _Refusal(names=("watchdog-config",), instead="it writes dumps to the worker's disk; remove it"),
    _Refusal(names=("profiler-config",), instead="it lets clients write traces to the worker's disk; remove it"),
)

_ALLOWED_THOUGH_ABBREVIATION: Final = ("reasoning-parser",)
"""Arguments of vLLM whose full name begins a refused name; the parser prefers the exact name."""

_NESTED_KEYS: Final = r'[".][a-z_]*(trust_remote_code|parser_plugin|module_path)'
"""Keys inside JSON arguments that load code, such as structured_outputs_config.reasoning_parser_plugin."""
_NESTED_MESSAGE: Final = (
    "trust_remote_code, ..._parser_plugin, ..._module_path: it loads code into the engine; "
    "build a worker image that brings it, and set spec.engine.image"
)
_ESCAPE_MESSAGE: Final = r"\u: write the characters themselves, so that what is asked for can be read"

# A negative number is a value; everything else that begins with a dash is an option, wherever it stands. A dotted
# option without `=` would take the item that follows it, even another option, as its value.
_FORM: Final = r"^([^-]|-[0-9]+$|--[a-z0-9][a-z0-9_-]*(=|$|[.][^=]+=))"
_FORM_MESSAGE: Final = (
    "write options in their long form, as --name, --name=value or --name.key=value, and a value after `=` or as the "
    "next item; -- alone and short options such as -tp are refused"
)
_NAME: Final = re.compile(r"--([a-z0-9_-]*)")


def check_engine_args(args: tuple[str, ...] | list[str]) -> list[EngineArgProblem]:
    """Every item that is refused, with what to use instead; an empty list if all may be passed on."""
    problems = []
    for index, item in enumerate(args):
        message = _refusal_message(item)
        if message is not None:
            argument = re.split(r"[=\s]", item, maxsplit=1)[0] or item
            problems.append(EngineArgProblem(index=index, argument=argument, message=message))
    return problems


def engine_option(args: Sequence[str], name: str) -> str | None:
    """Return the value that the engine takes for the option `name` (`max-num-seqs`): the last one; None without any."""
    items = zip(args, (*args[1:], ""), strict=False)
    split = ((item.partition("="), after) for item, after in items)
    values = [
        value if equals else after
        for (option, equals, value), after in split
        if option.startswith("--") and option[2:].replace("_", "-") == name
    ]
    return values[-1] if values else None


def _refusal_message(item: str) -> str | None:
    if re.match(_FORM, item) is None:
        return _FORM_MESSAGE
    if r"\u" in item:
        return _ESCAPE_MESSAGE
    if re.search(_NESTED_KEYS, item) is not None:
        return _NESTED_MESSAGE
    return next((refusal.message for refusal in _REFUSALS if _begins_one_of(item, refusal.names)), None)


def _begins_one_of(item: str, names: tuple[str, ...]) -> bool:
    """True if the option that the item names is one of `names`, or an abbreviation that the parser could expand."""
    found = _NAME.match(item)
    if found is None:
        return False
    written = found[1].replace("_", "-")
    if not written or written in _ALLOWED_THOUGH_ABBREVIATION:
        return False
    return any(name.startswith(written) for name in names)


def cel_rules() -> list[dict[str, str]]:
    """The same refusals as CEL rules on one item (`self` is a string)."""
    # `find`, not `split`: the API server's cost estimator can bound what it gives.
    written = "self.find('^--[a-z0-9_-]+').replace('_', '-')"
    rules = [
        {"rule": f"self.matches('{_FORM}')", "message": _FORM_MESSAGE},
        {"rule": r"!self.contains('\\u')", "message": _ESCAPE_MESSAGE},
        {"rule": f"!self.matches('{_NESTED_KEYS}')", "message": _NESTED_MESSAGE},
    ]
    for refusal in _REFUSALS:
        names = ", ".join(f"'--{name}'" for name in refusal.names)
        exceptions = "".join(
            f" || {written} == '--{name}'"
            for name in _ALLOWED_THOUGH_ABBREVIATION
            if any(refused.startswith(name) for refused in refusal.names)
        )
        rule = f"!self.startsWith('--'){exceptions} || ![{names}].exists(refused, refused.startsWith({written}))"
        rules.append({"rule": rule, "message": refusal.message})
    return rules
