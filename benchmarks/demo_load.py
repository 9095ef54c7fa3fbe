"""The demo's promises, lengths, rates and phase lengths, all of them made from what its engines measured. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from fulcrum.api.durations import seconds
from fulcrum.capacity.speed import WorkerSpeed
from fulcrum.replay import LatencyLimits
from fulcrum.simulation.traffic import Phase, Request, generate

PROMPTS_SPLIT: Final = 3, 1
ANSWERS_SPLIT: Final = 1, 3
"""The split (prefill, decode) of the four workers that is right for either phase, and wrong for the other one."""
PROMPTS_SHARE: Final = 0.42
ANSWERS_SHARE: Final = 0.55
"""Load of either phase, as a share of what its split serves at most. Answers are so long that the split of the first
phase serves a third of what that of the second does, so that 0.55 is 1.65 times what it can."""
OBSERVE_SECONDS: Final = 20.0
"""Start of the second phase in which the operator only observes: what a ratio that nothing changes would serve."""
PROMPT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 3.0
"""An engine takes about so long for a long prompt and for a long answer, so that on any machine a phase has about a
request per second: more would make the gateway the matter on quick machines, fewer tell the operator little."""
PROMPT_TOKENS: Final = range(64, 1201, 8)
OUTPUT_TOKENS: Final = range(12, 257)
"""Lengths of long prompts and of long answers. The shortest ones are for slow engines: shorter ones are neither."""
SHORT_PROMPT_TOKENS: Final = 32
SHORT_OUTPUT_TOKENS: Final = 3
TTFT_PREFILLS: Final = 3.0
"""Promised TTFT, as a multiple of what an engine that has nothing else to do takes to prefill a long prompt."""
TPOT_STEPS: Final = 2.5
"""Promised TPOT, as a multiple of a full batch's decode step."""
LONGEST_ANSWER_SECONDS: Final = 12.0
"""Engines that take longer for the shortest long answer are too slow for promises of latency: the operator decides by
answers that have ended, and would have to watch for minutes."""
PROMPTS_REACTIONS: Final = 1.5
ANSWERS_REACTIONS: Final = 4.0
"""Length of either phase, in times of what the operator needs to see a load and act on it. Requests that come before it
has acted are late: four times as many keep the promise before they are less than a tenth."""
ANSWERS_SEEN: Final = 2.0
"""Answers that must end, one after the other, before their length is known."""
SEED: Final = 4
"""Of arrivals and lengths."""
SPREAD: Final = 0.2
"""Sigma of the log-normal lengths."""
ARRIVALS_CV: Final = 0.5
"""Steadier than Poisson arrivals: what a few seconds show is the ratio's work, not the luck of the draw."""
WARM_UP_SECONDS: Final = 20.0
"""Of either phase, at `WARM_UP_SHARE` of its load, before what counts: the gateway learns how fast the engines are now
that none is starting any more."""
WARM_UP_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Two phases: one that wants most workers to prefill, and one that wants most of them to decode."""

    speed: WorkerSpeed
    slo: LatencyLimits
    prompts: Phase
    answers: Phase

    @property
    def act_seconds(self) -> float:
        """When the operator may act, in seconds from the start of the first phase."""
        return self.prompts.seconds + OBSERVE_SECONDS

    @property
    def seconds(self) -> float:
        return self.prompts.seconds + self.answers.seconds

    @property
    def requests(self) -> tuple[Request, ...]:
        """Both phases; the same every time."""
        return generate((self.prompts, self.answers), seed=SEED, cv=ARRIVALS_CV)

    @property
    def warm_up(self) -> tuple[Request, ...]:
        """A lighter load of both kinds, the first phase's last: its lengths are what the operator then expects."""
        phases = [
            replace(phase, seconds=WARM_UP_SECONDS, requests_per_second=WARM_UP_SHARE * phase.requests_per_second)
            for phase in (self.answers, self.prompts)
        ]
        return generate(phases, seed=SEED + 1, cv=ARRIVALS_CV)


def load_for(speed: WorkerSpeed, *, operator_seconds: float) -> Load:
    """Return the traffic for four engines of this speed, and what such engines can promise.

    `operator_seconds` is what the operator takes to act on a load that it knows (`operator_seconds_of`).
    """
    output_tokens = max(
        _most(OUTPUT_TOKENS, lambda tokens: tokens * full_step_seconds(speed, tokens), ANSWER_SECONDS),
        _decode_bound_tokens(speed),
    )
    prompt_tokens = _most(PROMPT_TOKENS, lambda tokens: prefill_seconds(speed, tokens), PROMPT_SECONDS)
    reaction_seconds = operator_seconds + ANSWERS_SEEN * answer_seconds(speed, output_tokens)
    return Load(
        speed=speed,
        slo=LatencyLimits(
            ttft_seconds=_milliseconds(TTFT_PREFILLS * prefill_seconds(speed, prompt_tokens)),
            tpot_seconds=_milliseconds(TPOT_STEPS * full_step_seconds(speed, output_tokens)),
        ),
        prompts=Phase(
            seconds=_fives(PROMPTS_REACTIONS * reaction_seconds),
            requests_per_second=PROMPTS_SHARE * served(speed, PROMPTS_SPLIT, prompt_tokens, SHORT_OUTPUT_TOKENS),
            prompt_tokens_mean=prompt_tokens,
            output_tokens_mean=SHORT_OUTPUT_TOKENS,
            spread=SPREAD,
        ),
        answers=Phase(
            seconds=_fives(OBSERVE_SECONDS + ANSWERS_REACTIONS * reaction_seconds),
            requests_per_second=ANSWERS_SHARE * served(speed, ANSWERS_SPLIT, SHORT_PROMPT_TOKENS, output_tokens),
            prompt_tokens_mean=SHORT_PROMPT_TOKENS,
            output_tokens_mean=output_tokens,
            spread=SPREAD,
        ),
    )


def operator_seconds_of(spec: Mapping[str, Any]) -> float:
    """Return what the operator takes to act on a load that it knows: one sample of its history, and the dwell time."""
    balance = spec["balance"]
    return seconds(balance["forecast"]["interval"]) + seconds(balance["flip"]["minDwell"])


def too_slow(speed: WorkerSpeed) -> str | None:
    """Return why such engines are too slow for promises of latency, with the limit; None when they are not."""
    tokens = OUTPUT_TOKENS[0]
    found = answer_seconds(speed, tokens)
    if found <= LONGEST_ANSWER_SECONDS:
        return None
    return (
        f"an engine takes {found:.1f} s for {SHORT_PROMPT_TOKENS} prompt and {tokens} output tokens "
        f"({full_step_seconds(speed, tokens):.2f} s a step), the limit is {LONGEST_ANSWER_SECONDS:.0f} s"
    )


def prefill_seconds(speed: WorkerSpeed, tokens: float) -> float:
    return speed.prefill_seconds(tokens, tokens**2)


def full_step_seconds(speed: WorkerSpeed, output_tokens: int, prompt_tokens: int = SHORT_PROMPT_TOKENS) -> float:
    """Return the decode step of a full batch of requests that are half done."""
    batch = float(speed.max_batch)
    return speed.decode_step_seconds(batch, batch * (prompt_tokens + output_tokens / 2))


def answer_seconds(speed: WorkerSpeed, output_tokens: int) -> float:
    """Return what a long answer takes, on workers that serve as many as they can."""
    return prefill_seconds(speed, SHORT_PROMPT_TOKENS) + output_tokens * full_step_seconds(speed, output_tokens)


def served(speed: WorkerSpeed, split: tuple[int, int], prompt_tokens: int, output_tokens: int) -> float:
    """Return the most requests/s that a split (prefill, decode) serves."""
    prefill, decode = split
    step_seconds = full_step_seconds(speed, output_tokens, prompt_tokens)
    return min(
        prefill / prefill_seconds(speed, prompt_tokens), decode * speed.max_batch / (output_tokens * step_seconds)
    )


def _decode_bound_tokens(speed: WorkerSpeed) -> int:
    """Return the shortest long answer for which decode workers, and not prefill workers, limit the right split."""
    prefill, decode = ANSWERS_SPLIT
    most = prefill / prefill_seconds(speed, SHORT_PROMPT_TOKENS)
    decoded = (t for t in OUTPUT_TOKENS if decode * speed.max_batch / (t * full_step_seconds(speed, t)) <= most)
    return next(decoded, OUTPUT_TOKENS[-1])


def _most(lengths: range, cost_seconds: Callable[[int], float], limit_seconds: float) -> int:
    """Return the longest length that costs at most so much; the shortest one where none does."""
    return max((each for each in lengths if cost_seconds(each) <= limit_seconds), default=lengths[0])


def _milliseconds(exact_seconds: float) -> float:
    """Round down to what a spec can say, so that a promise is never above its multiple."""
    return int(exact_seconds * 1000) / 1000


def _fives(exact_seconds: float) -> float:
    """Round up to 5 s, the time of one bar of the plot."""
    return 5.0 * ceil(exact_seconds / 5)
