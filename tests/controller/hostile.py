"""InferenceClusters that nobody should write: too deep, too large, of wrong types, with unknown fields and units."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]

_WORDS = ("", "x", "null", "-1", "1e999", "500ms", "1Gi", "9" * 40, "é\u202e", "../..", "$(HOME)", "a" * 5_000)
_VALUES: tuple[Any, ...] = (None, True, 0, -1, 2**31, 2**62, 0.5, 1e300, [], {}, [None], [[]], {"a": None}, *_WORDS)
_KEYS = ("metadata", "labels", "env", "containers", "volumes", "name", "template", "spec", "resources", "x", "")
_TEMPLATE: Json = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "worker",
                "env": [{"name": "A", "value": "b"}],
                "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
                "ports": [{"containerPort": 9000}],
                "volumeMounts": [{"name": "x", "mountPath": "/x"}],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
                "livenessProbe": {"httpGet": {"path": "/", "port": 8001}},
            }
        ],
        "initContainers": [],
        "volumes": [{"name": "x", "emptyDir": {}}],
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"a": "b"},
        "affinity": {"nodeAffinity": {}},
        "securityContext": {"sysctls": []},
        "topologySpreadConstraints": [],
        "terminationGracePeriodSeconds": 30,
    },
}
_BASE: Json = {
    "model": {"name": "m"},
    "slo": {"ttft": "2s", "tpot": "100ms"},
    "pools": [{"name": "p", "accelerator": "cpu", "workers": {"max": 1}, "template": _TEMPLATE}],
    "balance": {"mode": "Manual"},
    "gateway": {"replicas": 1},
}


def documents(seed: int, count: int) -> Iterator[Json]:
    """`count` specs; the same for the same seed. Most are changed in a template, where the schema lets all pass."""
    dice = random.Random(seed)
    kinds: tuple[Callable[[random.Random], Json], ...] = (_deep, _wide, _changed, _changed, _in_template, _in_template)
    for _ in range(count):
        yield dice.choice(kinds)(dice)


def _with_template(template: Any) -> Json:
    spec = copy.deepcopy(_BASE)
    spec["pools"][0]["template"] = template
    return spec


def _deep(dice: random.Random) -> Json:
    levels = dice.choice((50, 99, 150, 400, 700, 850, 900))
    value: Any = 1
    for _ in range(levels):
        value = [value] if dice.random() < 0.3 else {dice.choice(("spec", "a", "template")): value}
    return _with_template({dice.choice(("spec", "metadata", "x")): value})


def _wide(dice: random.Random) -> Json:
    size = dice.choice((100, 1_000, 5_000))
    name = dice.choice(("labels", "annotations"))
    return _with_template(
        dice.choice(
            (
                {"metadata": {name: {f"k{n}": "v" for n in range(size)}}},
                {"spec": {"containers": [{"name": f"c{n}"} for n in range(size // 10)]}},
                {"spec": {"volumes": [{"name": "x" * size}]}},
            )
        )
    )


def _in_template(dice: random.Random) -> Json:
    template = copy.deepcopy(_TEMPLATE)
    for _ in range(dice.randint(1, 3)):
        _mutate(template, dice)
    return _with_template(template)


def _changed(dice: random.Random) -> Json:
    spec = copy.deepcopy(_BASE)
    for _ in range(dice.randint(1, 2)):
        _mutate(spec, dice)
    return spec


def _mutate(value: Any, dice: random.Random) -> None:
    """Replace, remove or add one thing somewhere below."""
    places: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        at = pending.pop()
        inside = list(at.items()) if isinstance(at, dict) else list(enumerate(at))
        places += [(at, key) for key, _ in inside]
        pending += [item for _, item in inside if isinstance(item, dict | list)]
    if not places:
        return
    at, key = dice.choice(places)
    what = dice.random()
    if what < 0.15 and isinstance(at, dict):
        del at[key]
    elif what < 0.3 and isinstance(at, dict):
        at[dice.choice(_KEYS)] = copy.deepcopy(dice.choice(_VALUES))
    else:
        at[key] = copy.deepcopy(dice.choice(_VALUES))
