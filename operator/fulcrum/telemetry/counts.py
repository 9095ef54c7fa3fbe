"""A gateway's counters: read from its page, subtracted with care for restarts, and turned into `Traffic`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from fulcrum.api.reasons import REJECTIONS
from fulcrum.load.build import Latencies, Window, build_traffic
from fulcrum.load.lengths import Arrived, Measured, Moments
from fulcrum.load.traffic import Traffic
from fulcrum.telemetry.histogram import moments, quantile, squared_variation

PREFIX: Final = "fulcrum_gateway_"
ARRIVALS: Final = "arrivals_total"
REQUESTS: Final = "requests_total"
SLO: Final = "slo_total"
TTFT: Final = "time_to_first_token_seconds"
TPOT: Final = "time_per_output_token_seconds"
PROMPT: Final = "prompt_tokens"
OUTPUT: Final = "output_tokens"
ARRIVED_PROMPT: Final = "arrived_prompt_tokens"
ARRIVED_SQUARES: Final = "arrived_prompt_tokens_squared"
ARRIVED_OUTPUT: Final = "arrived_output_tokens"
EXPECTED_PROMPT: Final = "expected_prompt_tokens"
EXPECTED_OUTPUT: Final = "expected_output_tokens"
WAITED: Final = "queue_wait_seconds_sum"
INFO: Final = "info"
HISTOGRAMS: Final = (TTFT, TPOT, PROMPT, OUTPUT)
ESTIMATES: Final = (ARRIVED_PROMPT, ARRIVED_SQUARES, ARRIVED_OUTPUT, EXPECTED_PROMPT, EXPECTED_OUTPUT)
"""Of which there are sums and counts only."""
_START: Final = "process_start_time_seconds"
_SUBJECTS: Final = {
    PREFIX + ARRIVALS: "",
    PREFIX + REQUESTS: "reason",
    PREFIX + SLO: "outcome",
    PREFIX + WAITED: "",
    **{f"{PREFIX}{name}_bucket": "le" for name in HISTOGRAMS},
    **{f"{PREFIX}{name}_{part}": "" for name in (*HISTOGRAMS, *ESTIMATES) for part in ("sum", "count")},
}
"""Series that are read -> the label that tells its parts; all other labels are summed over."""
_BY_CLASS: Final = frozenset(f"{PREFIX}{ARRIVED_PROMPT}_{part}" for part in ("sum", "count"))
"""Of these, what came of each QoS class is kept, too: the part is the class."""
_LINES: Final = (PREFIX, _START)
_OWNER: Final = re.compile(r'fulcrum_cluster="[^"]*",fulcrum_namespace="[^"]*"')
"""Labels that all series of a page have; no value of another label has such text, as quotes in it are escaped."""


class Key(NamedTuple):
    """A counter: its name without the prefix, and the value of the one label that matters ("" for none)."""

    name: str
    part: str = ""


Counts = dict[Key, float]
_OUTPUT_BUCKETS: Final = f"{OUTPUT}_bucket"
LENGTHS: Final = tuple(Key(f"{name}_{part}") for name in (PROMPT, OUTPUT, *ESTIMATES) for part in ("sum", "count"))
"""What lengths are made of."""
_SPREAD: Final = (Key(f"{ARRIVED_PROMPT}_sum"), Key(f"{ARRIVED_PROMPT}_count"), Key(f"{ARRIVED_SQUARES}_sum"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One scrape of one gateway."""

    pod_name: str
    """What the gateway calls itself; empty outside Kubernetes."""
    cluster: str
    started_seconds: float
    """Start of its process, Unix time; NaN when it does not say."""
    counts: Counts = field(default_factory=dict)


class BadPageError(ValueError):
    """What answered is no gateway."""


def read_page(text: str) -> Page:
    """Read a gateway's `/metrics`. Raises BadPageError."""
    counts: Counts = {}
    info: Mapping[str, str] | None = None
    started_seconds = math.nan
    owner = _OWNER.search(text)
    same = owner[0] if owner is not None else " "
    try:
        for line in text.splitlines():
            if not line.startswith(_LINES):
                continue
            series, _, value = line.rpartition(" ")
            series = series.replace(same, "")
            keys = _known_keys(series) if len(series) <= _KNOWN_LENGTH else _keys(series)
            if keys:
                count(counts, keys, float(value))
                continue
            name = series.partition("{")[0]
            if name == PREFIX + INFO:
                info = _labels(line)
            elif name == _START:
                started_seconds = float(value)
    except ValueError as error:
        raise BadPageError(f"its metrics cannot be read: {error}") from error
    if info is None or Key(ARRIVALS) not in counts:
        raise BadPageError("its metrics are not those of a gateway")
    if any(math.isnan(value) for value in counts.values()):
        raise BadPageError("one of its counters is NaN")
    return Page(
        pod_name=info.get("pod", ""),
        cluster=info.get("fulcrum_cluster", ""),
        started_seconds=started_seconds,
        counts=counts,
    )


def count(counts: Counts, keys: Iterable[Key], value: float) -> None:
    """Add `value` to each of the keys."""
    for key in keys:
        counts[key] = counts.get(key, 0.0) + value


def _keys(series: str) -> tuple[Key, ...]:
    """Return what a series counts; nothing for one that is not read."""
    name = series.partition("{")[0]
    label = _SUBJECTS.get(name)
    if label is None:
        return ()
    short = name.removeprefix(PREFIX)
    if name in _BY_CLASS:
        return by_class(short, _label(series, "class"))
    return (Key(short, _label(series, label) if label else ""),)


_known_keys = lru_cache(maxsize=8192)(_keys)
"""Gateways have the same few hundred series at each scrape, and most of them in each cluster, but for `_OWNER`."""
_KNOWN_LENGTH: Final = 256
"""Longer ones are read anew: what is remembered is bounded."""


def by_class(name: str, qos_class: str) -> tuple[Key, ...]:
    """Return what a counter of a QoS class counts: for all together and, where the class is known, for itself."""
    return (Key(name), Key(name, qos_class)) if qos_class else (Key(name),)


def _label(series: str, name: str) -> str:
    """Value of a label that holds no quotes. Quotes in other labels are escaped, so the first match is the label."""
    for before in "{,":
        start = series.find(f'{before}{name}="')
        if start >= 0:
            start += len(name) + 3
            return series[start : series.index('"', start)]
    raise ValueError(f"{series} has no label {name}")


def _labels(line: str) -> Mapping[str, str]:
    samples = [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]
    return samples[0].labels


def increase(before: Page, after: Page) -> Counts:
    """What was counted between two scrapes of one gateway; a restart counts from zero."""
    restarted = after.started_seconds != before.started_seconds and not (
        math.isnan(after.started_seconds) and math.isnan(before.started_seconds)
    )
    if restarted or any(after.counts.get(key, 0.0) < value for key, value in before.counts.items()):
        return dict(after.counts)
    return {key: value - before.counts.get(key, 0.0) for key, value in after.counts.items()}


def add(counts: Iterable[Counts]) -> Counts:
    """Sum by key."""
    total: Counts = {}
    for each in counts:
        for key, value in each.items():
            total[key] = total.get(key, 0.0) + value
    return total


def spread_of(counts: Counts) -> tuple[Key, ...]:
    """What the spread of lengths is made of; the buckets of outputs are those of `counts`."""
    return *_SPREAD, *(key for key in counts if key.name == _OUTPUT_BUCKETS)


def make_traffic(
    counts: Counts,
    window_seconds: float,
    *,
    newest: Sequence[Counts] = (),
    longer: Counts | None = None,
    stretches: Sequence[Counts] = (),
    dispersion: float | None = None,
) -> Traffic:
    """What `counts` of `window_seconds` amount to; ratios of nothing are None. `dispersion` is passed on.

    `newest` (`Tuning.newest_parts` of the window) are for its beginning, `longer` (the last minutes) for the lengths,
    `stretches` (each `Tuning.window_seconds` of the last minutes) for how spread they are (`spread_of`).
    """
    arrivals = counts.get(Key(ARRIVALS), 0.0)
    outcomes = {key.part: value for key, value in counts.items() if key.name == SLO}
    rejected = {reason: count for reason in REJECTIONS if (count := counts.get(Key(REQUESTS, reason), 0.0)) > 0}
    ttft, tpot = _buckets(counts, TTFT), _buckets(counts, TPOT)
    longer = counts if longer is None else longer
    window = Window(
        seconds=window_seconds,
        arrivals=arrivals,
        came=_arrived(counts),
        newest=[_arrived(part) for part in newest],
        prompts=_measured(counts, PROMPT, EXPECTED_PROMPT),
        prompts_longer=_measured(longer, PROMPT, EXPECTED_PROMPT),
        outputs=_measured(counts, OUTPUT, EXPECTED_OUTPUT),
        outputs_longer=_measured(longer, OUTPUT, EXPECTED_OUTPUT),
        stretches=[_arrived(each) for each in stretches],
        output_stretches=[_outputs(each) for each in stretches],
        judged=sum(outcomes.values()),
        inside=outcomes.get("met", 0.0),
        rejected=sum(rejected.values()),
        rejectable=arrivals,
        classes=_by_class(counts),
    )
    return build_traffic(
        window,
        Latencies(
            ttft_p50=quantile(ttft, 0.5),
            ttft_p90=quantile(ttft, 0.9),
            ttft_p99=quantile(ttft, 0.99),
            tpot_p50=quantile(tpot, 0.5),
            tpot_p90=quantile(tpot, 0.9),
            tpot_p99=quantile(tpot, 0.99),
        ),
        isl_cv2=squared_variation(_buckets(counts, PROMPT)),
        osl_cv2=squared_variation(_buckets(counts, OUTPUT)),
        ended=counts.get(Key(f"{OUTPUT}_count")),
        rejections={reason: min(1.0, count / arrivals) for reason, count in rejected.items()} if arrivals > 0 else {},
        dispersion=dispersion,
        # Little's law: the seconds that all waited, in each second.
        queued=counts[Key(WAITED)] / window_seconds if Key(WAITED) in counts else None,
    )


def _by_class(counts: Counts) -> dict[str, Arrived]:
    return {
        key.part: Arrived(requests=count, prompt_tokens=counts.get(Key(f"{ARRIVED_PROMPT}_sum", key.part), 0.0))
        for key, count in counts.items()
        if key.name == f"{ARRIVED_PROMPT}_count" and key.part
    }


def _arrived(counts: Counts) -> Arrived:
    return Arrived(
        requests=counts.get(Key(f"{ARRIVED_PROMPT}_count"), 0.0),
        prompt_tokens=counts.get(Key(f"{ARRIVED_PROMPT}_sum"), 0.0),
        prompt_squares=counts.get(Key(f"{ARRIVED_SQUARES}_sum"), 0.0),
        outputs=counts.get(Key(f"{ARRIVED_OUTPUT}_count"), 0.0),
        output_tokens=counts.get(Key(f"{ARRIVED_OUTPUT}_sum"), 0.0),
    )


def _outputs(counts: Counts) -> Moments:
    count, tokens, squares = moments(_buckets(counts, OUTPUT))
    return Moments(count=count, tokens=tokens, squares=squares)


def _measured(counts: Counts, histogram: str, expected: str) -> Measured:
    return Measured(
        requests=counts.get(Key(f"{histogram}_count"), 0.0),
        tokens=counts.get(Key(f"{histogram}_sum"), 0.0),
        expected=counts.get(Key(f"{expected}_count"), 0.0),
        expected_tokens=counts.get(Key(f"{expected}_sum"), 0.0),
    )


def _buckets(counts: Counts, histogram: str) -> dict[float, float]:
    name = f"{histogram}_bucket"
    return {float(key.part): value for key, value in counts.items() if key.name == name}
