"""What a worker's decode batch will look like when a request is handed over to it.

A fluid model, O(1) for each worker: of the running requests, a share that falls exponentially with time is still there,
because output lengths are not known beforehand (an exponential is the guess that assumes least about them); those in
prefill that were promised to the worker arrive one after the other, and leave again; more keep joining at the rate of
the last seconds.
"""

from __future__ import annotations

from math import exp

from fulcrum.routing.decode_batch import DecodeBatch
from fulcrum.routing.path import HandOver
from fulcrum.routing.tuning import TUNING
from fulcrum.routing.worker import WorkerView


def hand_over(
    worker: WorkerView,
    now_seconds: float,
    delay_seconds: float,
    prompt_tokens: float,
    output_tokens: float,
    *,
    work_seconds: float = 0.0,
    prefilled_seconds: float = 0.0,
) -> HandOver:
    """Predict `worker` at `now + delay`, with a request of these lengths added.

    Its own prefill takes `work_seconds` of this worker and is over after `prefilled_seconds`.
    """
    answers, engine = worker.answers, worker.engine
    # Near the batch that is there, steps grow straight.
    a, b, c = engine.decode_line(answers.requests + 1)
    own = max(a + b + c * prompt_tokens, engine.least_step)
    others, others_context = answers.foreign_running, answers.foreign_context
    still, left = 0.0, output_tokens
    if answers.running:
        still, left, context = _still_running(answers, now_seconds, delay_seconds)
        others += still
        others_context += context
    growth = still * left
    if answers.pending:
        step = own + b * (others + answers.pending) + c * (others_context + answers.pending_context)
        # They come one after the other until its own prefill is over: of short answers some have ended by then.
        life, span = step * answers.pending_output / answers.pending, max(delay_seconds, prefilled_seconds)
        coming = min(life / span, 1.0) if span > 0 else 1.0
        pending = coming * answers.pending
        others += pending
        others_context += coming * answers.pending_context
        growth += coming * answers.pending_output
        left = growth / (still + pending)

    context = prompt_tokens + others_context
    kv = context + output_tokens + growth / 2
    # Places and memory are queues: what is too much has to leave first, and is in no step before.
    excess = max((others + 1) / engine.max_batch, 1.0)
    if context > excess * engine.kv_capacity > 0:
        excess = context / engine.kv_capacity
    step = max(a + (own + b * others + c * others_context - a) / excess, engine.least_step)
    life = left * step
    slot = (excess - 1) * life

    mean = others
    if output_tokens > 1:
        # What other gateways have here stays as it is: they go on as they do.
        own_others = max(others - answers.foreign_running, 0.0)
        mean = others - own_others + _mean_batch(answers, now_seconds, own_others, life, output_tokens * step)
    each = others_context / others if others > 0 else prompt_tokens
    tpot = own + c * output_tokens / 2 + mean * (b + c * each)
    if worker.prompts.busy or worker.prompts.prefill_rate or worker.lockstep:
        slower, queued = _beside_prefill(worker, now_seconds, 0.0 if work_seconds else prefilled_seconds, output_tokens)
        step, tpot = max(step * slower, step + queued), max(tpot * slower, tpot + queued)
    if answers.running:
        # Its prefill stands between the steps of the requests that decode here.
        step += work_seconds / answers.left_tokens
    return HandOver(step, tpot, kv, context, slot, own, life)


def _still_running(answers: DecodeBatch, now_seconds: float, delay_seconds: float) -> tuple[float, float, float]:
    """Of the running requests: how many are left after `delay_seconds`, their output tokens left, and their context."""
    running = answers.running
    context, step = answers.context_tokens, answers.step_seconds()
    gone = now_seconds - answers.decode_at
    if gone > 0:
        context += running * (gone / step)
    left = answers.left_at(context)
    if delay_seconds <= 0:
        return float(running), left, context
    stay = exp(-delay_seconds / (step * left))
    still = running * stay
    return still, left, stay * context + still * (delay_seconds / step)


def _mean_batch(answers: DecodeBatch, now_seconds: float, others: float, life: float, own_life: float) -> float:
    """Own others in the batch over a request's own life: they fade out while new ones come in (Little: rate * stay)."""
    faded = life / own_life * (1 - exp(-own_life / life))
    rate = answers.join_rate
    if rate and now_seconds > answers.joined_at:
        rate *= exp((answers.joined_at - now_seconds) / answers.memory_seconds)
    return others * faded + rate * life * (1 - faded)


def _beside_prefill(
    worker: WorkerView, now_seconds: float, over_seconds: float, output_tokens: float
) -> tuple[float, float]:
    """How many times longer decode steps take between prompts, and by how many seconds what is queued makes them so."""
    # Of what is queued now, `over_seconds` are over before its first step. An answer of one token has no pace: what is
    # queued delays that token.
    prompts = worker.prompts if worker.lockstep is None else worker.lockstep
    queued = 0.0
    if output_tokens > 1:
        queued = max(prompts.backlog_seconds(now_seconds) - over_seconds, 0.0) / output_tokens
    return 1 / (1 - min(prompts.prefill_share(now_seconds), TUNING.estimate_share)), queued


def chunk_seconds(worker: WorkerView, prompt_tokens: float) -> float:
    """What running decodes add to the prefill of `prompt_tokens`, and of what is queued before it."""
    answers, engine = worker.answers, worker.engine
    if not (answers.running or answers.foreign_running):
        return 0.0
    chunks = 1 + (worker.prompts.queued_tokens + prompt_tokens) // engine.chunk_tokens
    return chunks * (answers.step_seconds() - engine.least_step)
