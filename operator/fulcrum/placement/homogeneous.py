"""Placement on equal GPUs (DistServe, arXiv 2401.09670, section 4): parallelism of each phase by goodput per GPU.

With quick links between nodes (high affinity, algorithm 1) prefill and decode are searched apart and replicated until
they carry the traffic. With slow ones (low affinity, algorithm 2) a prefill and a decode worker are searched together:
each stage of both shares a node, so that KV moves inside nodes only.

Goodput comes from a simulation, which the caller hands in; an analytic bound says which candidates need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil
from typing import Final, Generic, Protocol, TypeVar

from fulcrum.api.parallelism import gpus_of
from fulcrum.placement.errors import DoesNotFitError, TooSlowError

TOLERANCE: Final = 0.01
"""Relative width at which the bisection of a candidate's goodput ends: below the noise of 300 simulated requests."""


@dataclass(frozen=True, slots=True, order=True)
class Phase:
    """The parallelism of one phase."""

    tensor: int
    pipeline: int

    @property
    def gpus(self) -> int:
        """Return the GPUs of one worker."""
        return gpus_of(tensor=self.tensor, pipeline=self.pipeline, data=1)

    def __str__(self) -> str:
        """As DistServe writes it: `4,1`."""
        return f"{self.tensor},{self.pipeline}"


@dataclass(frozen=True, slots=True, order=True)
class Pairing:
    """A prefill and a decode worker that serve together."""

    prefill: Phase
    decode: Phase

    @property
    def gpus(self) -> int:
        """Return the GPUs of both."""
        return self.prefill.gpus + self.decode.gpus

    def __str__(self) -> str:
        """As DistServe writes it: `2,1|1,1`."""
        return f"{self.prefill}|{self.decode}"


class Candidate(Protocol):
    """What is searched."""

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""


C = TypeVar("C", bound=Candidate)
Fits = Callable[[Phase], bool]
"""Whether the model with some KV cache fits on so many GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[C]):
    """The best candidate and what it took to find it."""

    best: C
    goodput_per_gpu: float
    """Requests/s within the promise."""
    candidates: int
    simulated: int
    """Candidates that the bound did not rule out."""


def phases(*, node_gpus: int, nodes: int, fits: Fits) -> list[Phase]:
    """Return every parallelism whose tensor ranks share a node (algorithm 1)."""
    most = node_gpus * nodes
    found = [Phase(tensor, pipeline) for tensor in range(1, node_gpus + 1) for pipeline in range(1, most // tensor + 1)]
    return [phase for phase in found if fits(phase)]


def pairings(*, node_gpus: int, nodes: int, fits: Fits) -> list[Pairing]:
    """Return every pair of which each node holds the same stages of both workers (algorithm 2)."""
    shapes = [(tensor, stages) for tensor in range(1, node_gpus + 1) for stages in range(1, node_gpus // tensor + 1)]
    found: set[Pairing] = set()
    for segments, prefill, decode in product(range(1, nodes + 1), shapes, shapes):
        if prefill[0] * prefill[1] + decode[0] * decode[1] <= node_gpus:
            found.add(Pairing(Phase(prefill[0], prefill[1] * segments), Phase(decode[0], decode[1] * segments)))
    return sorted(pair for pair in found if fits(pair.prefill) and fits(pair.decode))


@dataclass(slots=True)
class _Shares(Generic[C]):
    """Simulated shares, each computed once."""

    simulate: Callable[[C, float], float]
    known: dict[tuple[C, float], float] = field(default_factory=dict)

    def at(self, candidate: C, rate: float) -> float:
        key = (candidate, rate)
        if key not in self.known:
            self.known[key] = self.simulate(candidate, rate)
        return self.known[key]


def best_per_gpu(
    candidates: Sequence[C],
    *,
    bound: Callable[[C], float],
    share: Callable[[C, float], float],
    target: float,
    on_progress: Callable[[int, int], None] | None = None,
) -> Found[C]:
    """Return the candidate with most goodput per GPU.

    `bound` is a rate (requests/s) that its goodput does not exceed, `share` the simulated part of the requests inside
    the promise at a rate, `target` the part that must be. Candidates are taken by their bound, best first: the search
    ends where no bound is above what was found. `on_progress` gets how many are done, of how many.

    Raises:
        DoesNotFitError: there is no candidate.
        TooSlowError: none keeps the promise at any rate.
    """
    if not candidates:
        raise DoesNotFitError("the model fits on none of these GPUs: use more GPUs, or larger ones")
    shares = _Shares(share)
    order = sorted(candidates, key=lambda each: (-bound(each) / each.gpus, each.gpus))
    best, goodput, simulated = order[0], 0.0, 0
    for done, candidate in enumerate(order):
        if on_progress is not None:
            on_progress(done, len(order))
        if bound(candidate) / candidate.gpus <= goodput:
            break
        simulated += 1
        low, high = goodput * candidate.gpus, bound(candidate)
        # One run tells most of them off: is it better than the best at all?
        if low > 0 and shares.at(candidate, low * (1 + TOLERANCE)) < target:
            continue
        while high - low > TOLERANCE * high:
            middle = (low + high) / 2
            if shares.at(candidate, middle) >= target:
                low = middle
            else:
                high = middle
            if high / candidate.gpus <= goodput:
                break
        if low / candidate.gpus > goodput:
            best, goodput = candidate, low / candidate.gpus
    if goodput <= 0.0:
        raise TooSlowError("no parallelism keeps the promise even at low rates: promise more time, or use faster GPUs")
    return Found(best=best, goodput_per_gpu=goodput, candidates=len(order), simulated=simulated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Algorithm 1: how many workers of each phase carry a rate."""

    prefill: Phase
    prefill_workers: int
    decode: Phase
    decode_workers: int

    @property
    def gpus(self) -> int:
        """Return the GPUs of all workers."""
        return self.prefill.gpus * self.prefill_workers + self.decode.gpus * self.decode_workers


def replicated(prefill: Found[Phase], decode: Found[Phase], *, rate: float) -> Replicas:
    """Return the fewest workers of each phase's best parallelism that carry `rate` requests/s."""
    counts: Iterable[int] = (
        max(1, ceil(rate / (found.goodput_per_gpu * found.best.gpus) - 1e-9)) for found in (prefill, decode)
    )
    prefill_workers, decode_workers = counts
    return Replicas(
        prefill=prefill.best, prefill_workers=prefill_workers, decode=decode.best, decode_workers=decode_workers
    )
