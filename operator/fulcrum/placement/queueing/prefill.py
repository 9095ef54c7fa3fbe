"""Prefill workers behind a least-loaded router: the share of requests whose first token comes in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.load.demand import Demand
from fulcrum.placement.queueing.lengths import Floats, length_points
from fulcrum.placement.queueing.tuning import TUNING
from fulcrum.placement.queueing.waiting import Service, Waiting, inverse_erlang_b, turned_away, waiting

Stations = Sequence[tuple[WorkerSpeed, int]]
"""Pools of one role: (speed of one worker, number of workers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTime:
    """Seconds for a prompt of `l` tokens: `constant * max(1, l * chunks) + linear * l + square * l^2`.

    A long prompt is prefilled in chunks of the step's token budget and pays the constant for each.
    """

    constant: float
    chunks: float
    """Steps per token of a prompt that is longer than the budget of one step."""
    linear: float
    square: float

    def seconds(self, lengths: Floats) -> Floats:
        """Return the time of each length, alone on a worker."""
        chunked: Floats = self.constant * np.maximum(1.0, lengths * self.chunks)
        chunked += self.linear * lengths + self.square * lengths * lengths
        return chunked

    def longest(self, seconds: float) -> float:
        """Return the longest prompt (tokens) that takes at most `seconds`; may be infinite, 0 when there is none."""
        if seconds < self.constant:
            return 0.0
        short = _root(self.square, self.linear, seconds - self.constant)
        if short * self.chunks <= 1.0:
            return short
        return _root(self.square, self.linear + self.constant * self.chunks, seconds)


def prompt_time(speed: WorkerSpeed, *, constant: float, prefix_hit: float, budget_tokens: float) -> PromptTime:
    """Return the seconds that a worker takes for a prompt; what the prefix cache answers costs only attention to it."""
    computed = 1.0 - min(max(prefix_hit, 0.0), 1.0)
    k = speed.coefficients
    return PromptTime(
        constant=constant,
        chunks=computed / max(budget_tokens, 1.0),
        linear=k.prefill_b * computed,
        # A computed token attends to those before it, cached ones too: (l^2 - (hit l)^2).
        square=k.prefill_c * computed * (2.0 - computed),
    )


def prefill_attainment(
    demand: Demand, stations: Stations, *, ttft_seconds: float, extra_seconds: float = 0.0, early: bool = False
) -> float:
    """Return the share of requests whose wait + prefill + KV transfer + `extra_seconds` is at most `ttft_seconds`.

    `early`: those that would be late are turned away when they come, so that they delay no other.

    `extra_seconds` is what comes on top of it: hand-over and first decode step. At rate 0 this is the best that any
    number of workers can do: prompts that take too long on an idle worker are outside. Pools are taken best first,
    and one that would do harm is taken as not used.
    """
    groups = [
        PrefillGroup(
            time=prompt_time(
                speed,
                constant=speed.coefficients.prefill_a,
                prefix_hit=demand.prefix_hit,
                budget_tokens=speed.max_batched_tokens,
            ),
            workers=workers,
            most_sharing=speed.max_batch,
            transfer_base=speed.transfer_base_seconds + extra_seconds,
            transfer_per_token=speed.transfer_seconds_per_token,
        )
        for speed, workers in stations
        if workers > 0
    ]
    return groups_attainment(demand, groups, seconds=ttft_seconds, early=early)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillGroup:
    """A pool as a prompt sees it."""

    time: PromptTime
    workers: int
    most_sharing: float
    """Most prompts in one step, whatever their length."""
    transfer_base: float
    transfer_per_token: float
    """Seconds after the prefill, in which the worker is free again."""

    def longest(self, seconds: float) -> float:
        """Return the longest prompt whose prefill and transfer take at most `seconds` without any wait."""
        whole = replace(self.time, linear=self.time.linear + self.transfer_per_token)
        return whole.longest(seconds - self.transfer_base)


def groups_attainment(demand: Demand, groups: Sequence[PrefillGroup], *, seconds: float, early: bool = False) -> float:
    """Return the share of prompts that are through in `seconds`, by the best use of `groups`."""
    if demand.isl_tokens < 1.0:
        demand = replace(demand, isl_tokens=1.0)
    lengths, weights = length_points(demand.isl_tokens, demand.isl_cv2)
    best_first = list(groups)
    if len(best_first) > 1:

        def late_and_mean(group: PrefillGroup) -> tuple[float, float]:
            _, inside = length_points(demand.isl_tokens, demand.isl_cv2, longest=group.longest(seconds))
            return -float(inside.sum()), float(weights @ group.time.seconds(lengths))

        best_first.sort(key=late_and_mean)
    return max(
        (_attainment(demand, best_first[: i + 1], seconds, (lengths, weights), early) for i in range(len(best_first))),
        default=0.0,
    )


def _attainment(
    demand: Demand, groups: list[PrefillGroup], seconds: float, points: tuple[Floats, Floats], early: bool
) -> float:
    """Return the share of prompts in time when all `groups` (best first) are used."""
    lengths, weights = points
    if early:
        # A prompt that could not be in time on an idle worker does not come in either.
        longest = max(group.longest(seconds) for group in groups)
        lengths, weights = length_points(demand.isl_tokens, demand.isl_cv2, longest=longest)
        fitting = float(weights.sum())
        if fitting <= 0.0:
            return 0.0
        demand, weights = replace(demand, rate=demand.rate * fitting), weights / fitting
    times = [group.time.seconds(lengths) for group in groups]
    means = [float(weights @ time) for time in times]
    shares = _shares(demand.rate, means, [group.workers for group in groups])
    wait = _wait(demand, groups, shares, times, (lengths, weights))

    def inside(wait: Waiting) -> float:
        total = 0.0
        for share, group, time in zip(shares, groups, times, strict=True):
            own_lengths, own_weights = length_points(demand.isl_tokens, demand.isl_cv2, longest=group.longest(seconds))
            if share <= 0.0 or not own_weights.any():
                continue
            rooms = seconds - group.time.seconds(own_lengths) - group.transfer_base
            missed = wait.missed(np.maximum(rooms - group.transfer_per_token * own_lengths, 0.0), time, weights)
            total += share * float(own_weights @ (1.0 - (turned_away(missed, wait.load) if early else missed)))
        return min(max(total, 0.0), 1.0)

    if not early:
        return inside(wait)
    busy = 1.0
    if wait.load > TUNING.most_load:
        # Of what is too much for all of them, as much is let in as keeps them busy.
        busy = TUNING.most_load / wait.load
        wait = _wait(replace(demand, rate=demand.rate * busy), groups, shares, times, (lengths, weights))
    even = inside(replace(wait, burst=0.0))
    if wait.burst > 0.0 and even > 0.0:
        busy *= inside(wait) / even
    return even * _let_in(busy, np.asarray(shares) @ np.asarray(times), weights) if busy < 1.0 else even


def _let_in(work: float, seconds: Floats, weights: Floats) -> float:
    """Return the share of prompts that are let in when an overload or bursts leave room for this share of the work.

    A short prompt is still in time where a long one is late: those let in are shorter than those that come.
    """
    shortest = np.argsort(seconds)
    prompts = np.concatenate(([0.0], np.cumsum(weights[shortest])))
    works = np.concatenate(([0.0], np.cumsum((weights * seconds)[shortest])))
    first = float(np.interp(work * works[-1], works, prompts))
    return work + TUNING.shortest_first * (first - work)


def _shares(rate: float, means: list[float], workers: list[int]) -> list[float]:
    """Return which share of the requests each pool serves: what finds the faster ones full goes on (Erlang's B).

    Where more comes than they can do, so many would go on that a slower pool is busier than a faster one; but requests
    go where they are through first, and so these pools are equally busy.
    """
    left, shares = 1.0, []
    for mean, count in zip(means[:-1], workers[:-1], strict=True):
        load = left * rate * mean
        overflow = 1.0 / inverse_erlang_b(count, load) if load > 0.0 else 0.0
        shares.append(left * (1.0 - overflow))
        left *= overflow
    alike: list[tuple[float, float, int]] = []
    for share, mean, count in zip([*shares, left], means, workers, strict=True):
        served, capacity, pools = share, count / max(mean, 1e-12), 1
        while alike and served * alike[-1][1] > alike[-1][0] * capacity:
            before = alike.pop()
            served, capacity, pools = served + before[0], capacity + before[1], pools + before[2]
        alike.append((served, capacity, pools))
    busy = [served / capacity for served, capacity, pools in alike for _ in range(pools)]
    return [each * count / max(mean, 1e-12) for each, mean, count in zip(busy, means, workers, strict=True)]


def _wait(
    demand: Demand, groups: list[PrefillGroup], shares: list[float], times: list[Floats], points: tuple[Floats, Floats]
) -> Waiting:
    """Return the waiting in front of all groups together, as in one pool of servers with their average service."""
    lengths, weights = points
    parts = list(zip(shares, groups, times, strict=True))
    mean = sum(share * float(weights @ time) for share, _, time in parts)
    square = sum(share * float(weights @ (time * time)) for share, _, time in parts)
    # The constant of a prompt that is alone, and of one in steps that are full to the brim.
    alone = sum(
        share * group.time.constant * float(weights @ np.maximum(1.0, lengths * group.time.chunks))
        for share, group, _ in parts
    )
    full = sum(
        share * group.time.constant * max(demand.isl_tokens * group.time.chunks, 1.0 / max(group.most_sharing, 1.0))
        for share, group, _ in parts
    )
    return waiting(
        demand.rate,
        sum(group.workers for group in groups),
        Service(
            constant=min(alone, mean),
            own=max(mean - alone, 0.0),
            cv2=max(square / (mean * mean) - 1.0, 0.0) if mean > 0.0 else 0.0,
            most_sharing=max(alone / full, 1.0) if full > 0.0 else 1.0,
            held_up=sum(share * _held_up(group, demand.isl_tokens) for share, group, _ in parts),
        ),
        dispersion=demand.dispersion,
    )


def _held_up(group: PrefillGroup, isl_tokens: float) -> float:
    """Return by how much prompts behind one's own hold it up: they share its (last) step as far as the budget goes."""
    if group.most_sharing <= 1.0:
        return 1.0
    return 1.5 - 0.3 * min(isl_tokens * group.time.chunks, 1.0)


def _root(square: float, linear: float, value: float) -> float:
    """Return the x >= 0 with `square x^2 + linear x = value`; infinite when both are 0, or `value` is."""
    if value == inf or (linear <= 0.0 and square <= 0.0):
        return inf
    return 2.0 * value / (linear + sqrt(linear * linear + 4.0 * square * value)) if value > 0.0 else 0.0
