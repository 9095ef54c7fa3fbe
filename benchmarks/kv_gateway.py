"""What KV tiers, and gateways that share their memory of prefixes, add to what a request costs a gateway.

One process, no I/O: prefix keys, decision and bookkeeping of a prompt of 1,000 tokens, over one prefill and one decode
worker. `new` prompts come once; those that come `back` have left the KV cache, so with tiers each decision includes the
split of a restore. The variants take turns. A figure is the median over the rounds of what a variant takes beyond the
one without tiers in the same round. `three gateways` includes that a gateway tells two others what it sent, and learns
from two others that get as many requests.

Runs compiled (hatch_build.py) where there is a compiler. Fails when tiers that are never hit add more than 3 us.

    python benchmarks/kv_gateway.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace

import msgspec
from _loopback.launch import environment

from admission import CLASSES, OUTPUT_TOKENS, SPEED
from fulcrum.admission import Admission, Reject
from fulcrum.api.names import Role
from fulcrum.api.serving_types import AdmissionPolicy
from fulcrum.capacity.kv import TransferCost
from fulcrum.kv import Tiers
from fulcrum.routing import Incoming, SentBatch, learn_batch, prefix_keys, take_batch

PROMPT_BYTES, PROMPT_TOKENS = 4000, 1000
SMALL_CACHE_TOKENS = 40_000
"""So that a prompt has left the device when it comes back."""
CYCLE = 400
"""After so many others a prompt comes back."""
BATCH = 25
"""Requests of one gateway between two messages: 100 a second."""
OTHER_GATEWAYS = 2
TARGET_MICROSECONDS = 3.0
HOST = Tiers(host_tokens=2e6, host_link=TransferCost(base_seconds=0.0, seconds_per_token=6e-6), front=True)
POOL = replace(HOST, pool_tokens=3e7, pool_link=TransferCost(base_seconds=0.0, seconds_per_token=4e-5))
VARIANTS = {
    "no tiers": (None, False),
    "host memory": (HOST, False),
    "host memory and pool": (POOL, False),
    "three gateways, no tiers": (None, True),
    "three gateways, both tiers": (POOL, True),
}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SentBatch)


@dataclass
class Gateway:
    """The part of a gateway that decides, and what its requests took in each round."""

    tiers: Tiers | None
    shares: bool
    back: bool
    first: int = 0
    """Number of its first prompt: those of two gateways differ."""
    rounds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._admission = Admission(AdmissionPolicy.PREDICTIVE, CLASSES, ttft_seconds=1.0, tpot_seconds=0.05)
        self.view = view = self._admission.new_view()
        view.workers.set_speed("h100", replace(SPEED, kv_capacity_tokens=SMALL_CACHE_TOKENS))
        for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
            view.workers.put(name, role, pool="h100", revision="r1", node=name)
            view.workers.set_tiers(name, self.tiers)
        view.affinity.share(others=self.shares)
        self._number = self.first

    def serve(self, count: int) -> list[float]:
        """Serve so many requests, one at a time; the microseconds of each."""
        took = []
        for _ in range(count):
            self._number += 1
            number = self.first + self._number % CYCLE if self.back else self._number
            body = (b"%d " % number * PROMPT_BYTES)[:PROMPT_BYTES]
            began = time.perf_counter_ns()
            incoming = self._admission.incoming(
                prompt_tokens=PROMPT_TOKENS, max_tokens=OUTPUT_TOKENS, qos=0, prefix=prefix_keys(body, 1),
                units_per_token=4.0,
            )  # fmt: skip
            self._run(incoming, float(self._number))
            took.append((time.perf_counter_ns() - began) / 1e3)
        return took

    def _run(self, incoming: Incoming, now: float) -> None:
        decided = self._admission.decide(incoming, self.view, now)
        if isinstance(decided, Reject):
            sys.exit(f"a request was turned away: {decided}")
        flight = self.view.start(incoming, decided.route, now)
        self.view.prefill_done(flight, now + 0.5, prompt_tokens=PROMPT_TOKENS)
        self.view.finish(flight, now + 0.9)

    def message(self) -> bytes:
        """What the other gateways are to be told."""
        return _encoder.encode(take_batch(self.view))

    def learn(self, message: bytes) -> None:
        """Take in what another gateway told."""
        learn_batch(self.view, _decoder.decode(message))


def measure(gateway: Gateway, other: Gateway | None, batches: int) -> None:
    """One round; `other` sends the messages that are learnt from."""
    took: list[float] = []
    shared: list[float] = []
    for _ in range(batches):
        took += gateway.serve(BATCH)
        if other is None:
            continue
        messages = []
        for _ in range(OTHER_GATEWAYS):
            other.serve(BATCH)
            messages.append(other.message())
        began = time.perf_counter_ns()
        gateway.message()
        for message in messages:
            gateway.learn(message)
        shared.append((time.perf_counter_ns() - began) / 1e3 / BATCH)
    gateway.rounds.append(statistics.median(took) + (statistics.median(shared) if shared else 0.0))


def compare(*, back: bool, rounds: int, batches: int) -> dict[str, float]:
    """Microseconds of a request by variant: of the first one all, of the others what they add to it."""
    gateways = {name: Gateway(tiers, shares, back) for name, (tiers, shares) in VARIANTS.items()}
    others = {
        name: Gateway(tiers, shares, back, first=1_000_000) if shares else None
        for name, (tiers, shares) in VARIANTS.items()
    }
    for number in range(rounds + 1):
        for name, gateway in gateways.items():
            measure(gateway, others[name], batches)
            if not number:
                gateway.rounds.clear()
    base = gateways["no tiers"].rounds
    added = {
        name: statistics.median(own - alone for own, alone in zip(gateway.rounds, base, strict=True))
        for name, gateway in gateways.items()
    }
    return {**added, "no tiers": statistics.median(base)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--here", action="store_true", help="with the code that this process finds, compiled or not")
    options = parser.parse_args()
    if not options.here:
        from gateway import compiled

        command = [sys.executable, *sys.argv, "--here"]
        sys.exit(subprocess.run(command, check=False, env=environment(compiled())).returncode)
    new, back = (
        compare(back=back, rounds=5 if options.quick else 21, batches=8 if options.quick else 20)
        for back in (False, True)
    )
    print(f"{'microseconds of a request':<30}{'new':>8}{'back':>8}")
    for name in VARIANTS:
        sign = "" if name == "no tiers" else "+"
        print(f"{name:<30}{new[name]:>{sign}8.1f}{back[name]:>{sign}8.1f}")
    added = new["host memory and pool"]
    print(f"kv_gateway: {'OK' if added <= TARGET_MICROSECONDS else 'TARGET MISSED'}: tiers that are never hit add "
          f"{added:.1f} us (<= {TARGET_MICROSECONDS})")  # fmt: skip
    sys.exit(added > TARGET_MICROSECONDS)


if __name__ == "__main__":
    main()
