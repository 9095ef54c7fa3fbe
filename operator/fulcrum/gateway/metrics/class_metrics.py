"""What is counted of each QoS class. Its histograms are written as text here: there are many, and a scrape must not
hold up the streams (the Prometheus classes take ten times as long)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fulcrum.gateway.metrics.histogram import PREFIX, Histogram
from fulcrum.gateway.metrics.slo import SloOutcome

# Quantiles are read from these two by interpolation, so their buckets are narrower.
_FIRST_TOKEN_SECONDS: Final = (
    0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
_TOKEN_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3,
    0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
# Half powers keep the spread that is read from them within 5 % (a power of two alone: 16 %).
TOKENS: Final = (1.0, *(share * (1 << power) for power in range(1, 20) for share in (1.0, 1.5)), float(1 << 20))


class Sum:
    """What was observed, summed, and how often."""

    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Observe a value."""
        self.count += 1
        self.sum += value


class ClassMetrics:
    """What is counted of the requests of one QoS class."""

    __slots__ = (
        "arrivals",
        "arrived_output_tokens",
        "arrived_prompt_tokens",
        "arrived_prompt_tokens_squared",
        "batch_output_tokens",
        "expected_output_tokens",
        "expected_prompt_tokens",
        "output_tokens",
        "prompt_tokens",
        "slo",
        "slo_asked",
        "tpot_seconds",
        "ttft_seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.arrivals = 0
        """Requests that came and could be read, also the ones that were turned away."""
        # A request that waits, or has a long answer, is in the histograms only long after it came.
        self.arrived_prompt_tokens = Sum()
        self.arrived_prompt_tokens_squared = Sum()
        self.arrived_output_tokens = Sum()
        self.expected_prompt_tokens = Sum()
        self.expected_output_tokens = Sum()
        """What was expected of those in `prompt_tokens` as they came, of those in `output_tokens` as they ended."""
        self.batch_output_tokens = 0
        """Output tokens of finished requests, where the class is a batch class: its other counts stay 0."""
        self.slo = dict.fromkeys(SloOutcome, 0)
        self.slo_asked = dict.fromkeys(SloOutcome, 0)
        """Of requests that asked for more than is promised to all, by what they asked for."""
        self.ttft_seconds = Histogram(_FIRST_TOKEN_SECONDS)
        self.tpot_seconds = Histogram(_TOKEN_SECONDS)
        self.prompt_tokens = Histogram(TOKENS)
        self.output_tokens = Histogram(TOKENS)


_CLASS_HISTOGRAMS: Final = (
    (
        "ttft_seconds",
        "time_to_first_token_seconds",
        "From a whole request to its first token: of streams, to the first bytes; else to the end of the prefill leg.",
    ),
    ("tpot_seconds", "time_per_output_token_seconds", "Time per output token after the first, mean of each request."),
    ("prompt_tokens", "prompt_tokens", "Prompt length: as the engine counted it, else estimated from its bytes."),
    ("output_tokens", "output_tokens", "Output length: as the engine counted it; of streams, the number of events."),
)


def histogram_lines(
    classes: Mapping[str, ClassMetrics], labels: Mapping[str, str], *, exemplars: bool = False
) -> Iterator[str]:
    """Every histogram of every class in Prometheus' text format, each line ended; `exemplars`: in OpenMetrics'."""
    common = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    for attribute, name, documentation in _CLASS_HISTOGRAMS:
        yield f"# HELP {PREFIX}{name} {documentation}\n# TYPE {PREFIX}{name} histogram\n"
        for class_name, counts in classes.items():
            histogram: Histogram = getattr(counts, attribute)
            yield from histogram.lines(PREFIX + name, f'{common},class="{_escaped(class_name)}"', exemplars=exemplars)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
