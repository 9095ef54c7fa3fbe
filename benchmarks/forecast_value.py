# ruff: noqa: E402, I001 # numpy reads the number of threads when it is imported
"""What a forecast is worth: each load with forecasts off, the last value, a model, what auto chooses, and foresight.

Workers of Llama-3.1-70B on two H100 come and go, from one to sixteen, and take two minutes to start; our planner
decides how many. Only the forecast differs:

* `off`: none; Pods are started for what is measured.
* `reactive`: the last value.
* `predictive`: ARIMA, whatever it is worth.
* `auto`: the default; the method is chosen by back-test, and its 0.9 quantile is planned for.
* `promise`: the same with `bound: Promise`; the quantile is chosen by back-test, too.
* `perfect`: what will come, rate and lengths.

`tide` and `evening` (long answers at one time of the season) have a season of an hour and three of them as history; the
others begin with nothing. Recorded traces (`../shared/traces`) are played where they are there.

    python benchmarks/forecast_value.py [--only LOAD,LOAD] [--forecasts NAME,NAME] [--seed N]

Printed: requests inside the SLO, GPU-hours, good requests per GPU-hour and the same against `off`, how many of the
forecasts were the last value, and their mean quantile. Exits with 1 when `auto` serves fewer good requests per GPU-hour
than the last value by more than 2 %, or `promise` keeps neither the promise nor what `auto` keeps, to 1 point.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import pi, sin
from pathlib import Path

import msgspec
import numpy as np

from policies import Case, inputs_of

from fulcrum.api.balance_types import Forecast as ForecastSpec
from fulcrum.api.balance_types import ForecastBound
from fulcrum.api.types import ForecastMethod, InferenceClusterSpec
from fulcrum.forecast.forecaster import Forecaster
from fulcrum.forecast.result import Forecast
from fulcrum.forecast.series import LoadSeries
from fulcrum.simulation.arrivals import Rate, constant, ladder, ramp, sine
from fulcrum.simulation.engine import simulate
from fulcrum.simulation.generate import phased, stream
from fulcrum.simulation.lengths import LogNormalLengths
from fulcrum.simulation.policies import Ours
from fulcrum.simulation.traffic import Phase, load_trace
from fulcrum.simulation.workload import Workload

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
INTERVAL_SECONDS = 60.0
SEASON_SECONDS = 3600.0
SEASONS_BEFORE = 3
MOST_WORKERS = 16
LENGTHS = LogNormalLengths(prompt_mean=4000, output_mean=500, prompt_spread=0.5, output_spread=0.5)
"""Long enough that few requests keep many workers busy, which are quick to simulate."""
START_SECONDS = 120.0
TURN_SECONDS = 10.0
PROMISED = 0.95
"""`slo.attainment`, the default."""
MOST_LOST = 0.01
"""Share of the requests by which `promise` may miss what is promised, or what `auto` keeps where that is less."""
MOST_DEARER = 0.02
"""Share of good requests per GPU-hour by which `auto` may be behind the last value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests, of which those before `begin_seconds` are history."""

    name: str
    make: Callable[[int], Workload]
    begin_seconds: float = 0.0
    slo: tuple[str, str] = ("2s", "40ms")
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one load under one forecast."""

    inside: float
    gpu_hours: float
    good: float
    """Requests inside the SLO."""
    last_values: float
    """Share of the forecasts that were the last value."""
    quantile: float
    """On average."""

    @property
    def per_gpu_hour(self) -> float:
        return self.good / self.gpu_hours


class Off(Forecaster):
    """No forecast."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 0.0)

    def update(self, series: LoadSeries, *, horizon_seconds: float) -> Forecast | None:  # is a Forecaster
        return None


class Perfect(Forecaster):
    """What will come."""

    def __init__(self, load: Workload) -> None:
        super().__init__(clock=lambda: 0.0)
        self._come = series_of(load)

    def update(self, series: LoadSeries, *, horizon_seconds: float) -> Forecast | None:
        now = round(series.end_seconds / INTERVAL_SECONDS)
        ahead = slice(now, now + int(np.ceil(horizon_seconds / INTERVAL_SECONDS)))
        rate = tuple(self._come.rate[ahead].tolist())
        if not rate:
            return None
        return Forecast(
            method=ForecastMethod.LAST_VALUE,
            interval_seconds=INTERVAL_SECONDS,
            quantile=0.5,
            rate=rate,
            upper_rate=rate,
            isl_tokens=tuple(np.nan_to_num(self._come.isl_tokens[ahead]).tolist()),
            osl_tokens=tuple(np.nan_to_num(self._come.osl_tokens[ahead]).tolist()),
        )


def series_of(load: Workload, *, end_seconds: float = 0.0) -> LoadSeries:
    """Return the load per interval, the last one ending at `end_seconds`."""
    index = (load.arrival_seconds // INTERVAL_SECONDS).astype(np.int64)
    arrivals = np.bincount(index)
    there = np.where(arrivals > 0, arrivals, np.nan)
    return LoadSeries(
        interval_seconds=INTERVAL_SECONDS,
        end_seconds=end_seconds,
        rate=arrivals / INTERVAL_SECONDS,
        isl_tokens=np.bincount(index, load.prompt_tokens) / there,
        osl_tokens=np.bincount(index, load.output_tokens) / there,
    )


def made(rate: Rate, *, seconds: float, cv: float = 1.0) -> Callable[[int], Workload]:
    return lambda seed: stream(rate=rate, lengths=LENGTHS, seconds=seconds, seed=seed, cv=cv)


def minute(rate: float, output_tokens: float = 500.0) -> Phase:
    return Phase(
        seconds=60.0,
        requests_per_second=rate,
        prompt_tokens_mean=4000,
        output_tokens_mean=output_tokens,
        spread=0.5,
    )


def seasons(minute_of: Callable[[float], Phase]) -> Callable[[int], Workload]:
    """Return a load of four seasons, made of minutes; `minute_of` takes the share of the season that is over."""
    minutes = int((SEASONS_BEFORE + 1) * SEASON_SECONDS / 60)
    return lambda seed: phased([minute_of(place * 60 / SEASON_SECONDS % 1) for place in range(minutes)], seed=seed)


def jobs(seed: int) -> Workload:
    """Plateaus of five minutes, as of batch jobs, each of any height."""
    heights = np.random.default_rng(seed).uniform(1, 9, size=8).tolist()
    return made(ladder([(300, height) for height in heights]), seconds=2400)(seed)


def loads() -> list[Load]:
    def recorded(name: str, file: str, speed: float, slo: tuple[str, str]) -> Load:
        return Load(name=name, make=lambda _: Workload.of(load_trace(TRACES / file)).scaled(speed), slo=slo, file=file)

    begin_seconds = SEASONS_BEFORE * SEASON_SECONDS
    tide = seasons(lambda part: minute(4.5 + 3.5 * sin(2 * pi * part)))
    evening = seasons(lambda part: minute(4.5, 1500.0 if 0.4 <= part < 0.7 else 300.0))
    return [
        Load(name="flat", make=made(constant(5), seconds=1800)),
        Load(name="ramp", make=made(ramp(1, 10, end_seconds=1800), seconds=1800)),
        Load(name="sine", make=made(sine(1, 9, period_seconds=900), seconds=2700)),
        Load(name="bursts", make=made(constant(4), seconds=1800, cv=4.0)),
        Load(name="jobs", make=jobs),
        Load(name="tide", make=tide, begin_seconds=begin_seconds),
        Load(name="evening", make=evening, begin_seconds=begin_seconds),
        recorded("azure", "azure_conv_2023.csv", 2.5, ("1s", "30ms")),
        recorded("mooncake", "mooncake_conversation.jsonl", 0.6, ("10s", "50ms")),
    ]


FORECASTS: Mapping[str, Callable[[Workload], tuple[ForecastSpec, Forecaster | None]]] = {
    "off": lambda _: (ForecastSpec(), Off()),
    "reactive": lambda _: (ForecastSpec(method=ForecastMethod.LAST_VALUE), None),
    "predictive": lambda _: (ForecastSpec(method=ForecastMethod.ARIMA), None),
    "auto": lambda _: (ForecastSpec(), None),
    "promise": lambda _: (ForecastSpec(bound=ForecastBound.PROMISE), None),
    "perfect": lambda load: (ForecastSpec(), Perfect(load)),
}


def spec_with(spec: InferenceClusterSpec, forecast: ForecastSpec, season_seconds: float) -> InferenceClusterSpec:
    forecast = msgspec.structs.replace(forecast, seasonality=f"{season_seconds:.0f}s")
    return msgspec.structs.replace(spec, balance=msgspec.structs.replace(spec.balance, forecast=forecast))


def play(load: Load, whole: Workload, name: str) -> Row:
    """Simulate one load under one forecast."""
    begin = load.begin_seconds
    requests = whole.between(begin, whole.duration_seconds + 1)
    case = Case(name=load.name, load=lambda: requests, workers=MOST_WORKERS, slo=load.slo)
    inputs = inputs_of(case, requests, low=1, start_seconds=START_SECONDS)
    forecast, forecaster = FORECASTS[name](requests)
    policy = Ours(
        spec_with(inputs.spec, forecast, SEASON_SECONDS if begin else 86_400.0),
        least_turn_seconds=TURN_SECONDS,
        history=series_of(whole.between(0, begin)) if begin else None,
        forecaster=forecaster,
    )
    result = simulate(requests, inputs.cluster, policy, slo=inputs.slo)
    summary = result.summary(inputs.slo)
    made = [forecast for _, forecast in policy.forecasts]
    return Row(
        inside=summary.attainment,
        gpu_hours=summary.gpu_hours,
        good=summary.attainment * len(requests),
        last_values=float(np.mean([one.method is ForecastMethod.LAST_VALUE for one in made])) if made else 0.0,
        quantile=float(np.mean([one.quantile for one in made])) if made else 0.0,
    )


def main() -> int:
    """Run the benchmark; 0 when every target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="loads, with commas")
    parser.add_argument("--forecasts", help="forecasts, with commas; default: all")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    names = arguments.forecasts.split(",") if arguments.forecasts else list(FORECASTS)
    print(
        f"{'load':9} {'forecast':10} {'in SLO':>7} {'GPU-h':>6} {'good/GPU-h':>10} {'to off':>7}  last value, quantile"
    )
    found: dict[str, dict[str, Row]] = {}
    for load in loads():
        if arguments.only and load.name not in arguments.only.split(","):
            continue
        if load.file is not None and not (TRACES / load.file).exists():
            print(f"{load.name:9} skipped, {load.file} is not there")
            continue
        whole = load.make(arguments.seed)
        rows = found[load.name] = {}
        for name in names:
            row = rows[name] = play(load, whole, name)
            against = f"{row.per_gpu_hour / rows['off'].per_gpu_hour - 1:+.1%}" if "off" in rows else ""
            print(
                f"{load.name:9} {name:10} {row.inside:7.1%} {row.gpu_hours:6.2f} {row.per_gpu_hour:10,.0f} "
                f"{against:>7}  {row.last_values:.0%}, {row.quantile:.2f}",
                flush=True,
            )
    checks = targets(found)
    for text, met in checks:
        print(f"{text:100} {'ok' if met else 'MISSED'}")
    return 0 if all(met for _, met in checks) else 1


def targets(found: Mapping[str, Mapping[str, Row]]) -> Sequence[tuple[str, bool]]:
    """Return what is promised of `auto` and `promise`, and whether it holds; of what was not played nothing is."""
    checks: list[tuple[str, bool]] = []
    for load, rows in found.items():
        auto, reactive, promise = (rows.get(name) for name in ("auto", "reactive", "promise"))
        if auto is not None and reactive is not None:
            share = auto.per_gpu_hour / reactive.per_gpu_hour
            text = f"{load}: auto serves {share - 1:+.1%} good requests per GPU-hour against the last value"
            checks.append((text, share >= 1 - MOST_DEARER))
        if auto is not None and promise is not None:
            least = min(auto.inside, PROMISED) - MOST_LOST
            text = (
                f"{load}: promise keeps {promise.inside:.1%} in {promise.gpu_hours / auto.gpu_hours - 1:+.1%} GPU-hours"
            )
            checks.append((text, promise.inside >= least))
    return checks


if __name__ == "__main__":
    sys.exit(main())
