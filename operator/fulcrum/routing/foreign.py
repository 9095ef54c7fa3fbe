"""What a worker's report says about the work of other gateways. Pure."""

from __future__ import annotations

from fulcrum.api.names import Role
from fulcrum.api.worker import LoadReport
from fulcrum.routing.worker import WorkerView


def take_report(
    worker: WorkerView,
    load: LoadReport,
    now_seconds: float,
    *,
    mean_prompt_tokens: float,
    cv2: float,
    tpot_seconds: float,
) -> None:
    """Set what the report has beyond what was started here, as far as it says how much runs, waits and was computed.

    `mean_prompt_tokens` and `cv2`: mean and squared coefficient of variation of the prompts that were started here. All
    prompts are taken to vary as much, as an engine only counts tokens.
    """
    answers, engine = worker.answers, worker.engine
    if load.work is not None:
        worker.prompts.usual.learn(load.work)
    prompt_tokens, new_tokens = worker.prompts.usual.tokens(mean_prompt_tokens)
    # Attention grows with the square of each length: more than that of the mean, less than that of the sum.
    prompt_seconds = engine.work_seconds(prompt_tokens, prompt_tokens - new_tokens, cv2)
    if load.work is not None and load.work.computed_tokens is not None:
        worker.prompts.set_computed(now_seconds, load.work.computed_tokens, prompt_seconds / new_tokens)
    if load.running is None or load.waiting is None:
        return
    beyond = max(load.running + load.waiting - worker.in_flight, 0)
    decoding = 0.0
    if worker.role is Role.DECODE:
        decoding = float(beyond)
    elif worker.role is Role.MIXED:
        # What waits has not been prefilled, whichever gateway sent it.
        decoding = float(min(beyond, max(load.running - answers.running, 0)))
    prompts = beyond - decoding
    if worker.role is Role.PREFILL:
        # Those in the step under way are half done on average.
        prompts -= min(prompts, load.running) / 2
    elif load.queued_prompt_tokens == 0:
        prompts = 0.0
    tokens = prompts * prompt_tokens
    if load.queued_prompt_tokens and worker.role is not Role.DECODE:
        tokens = max(load.queued_prompt_tokens - worker.prompts.queued_tokens, 0.0)
    mean = answers.context_tokens / answers.running if answers.running else prompt_tokens
    context = decoding * mean
    if decoding and load.kv_usage is not None and engine.kv_capacity:
        context = max(load.kv_usage * engine.kv_capacity - answers.context_tokens, 0.0)
    worker.set_foreign(
        now_seconds,
        prefill_seconds=tokens / prompt_tokens * prompt_seconds,
        running=decoding,
        context_tokens=context,
        share=decoding * engine.share_of(context / decoding, 0.0, tpot_seconds) if decoding else 0.0,
    )
