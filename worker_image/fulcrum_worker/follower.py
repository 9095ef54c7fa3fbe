"""`python -m fulcrum_worker.follower`: one of the other Pods of a worker on several nodes.

It runs its part of the engine and nothing else: no agent, no API. When that part ends, so does the Pod, and the group
is made anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from fulcrum.api.worker import EXIT_BAD_CONFIG, EXIT_ENGINE_DIED, EXIT_ENGINE_NOT_STARTED
from fulcrum_worker.config import BadConfigError, check_locked_memory, read_config
from fulcrum_worker.device_faults import blamed
from fulcrum_worker.engine_command import SHUTDOWN_TIMEOUT_SECONDS, EngineCommand, engine_command
from fulcrum_worker.engine_process import EngineProcess, digest
from fulcrum_worker.engine_ranks import lost_rank, refusal
from fulcrum_worker.engine_start import vllm_facts
from fulcrum_worker.kv.policy import vllm_version
from fulcrum_worker.memory import may_lock_memory
from fulcrum_worker.models import local_model

logger = logging.getLogger(__name__)


async def run_follower(command: EngineCommand) -> int:
    """Run the engine's part until SIGTERM or SIGINT (0), or until it ends by itself (`EXIT_ENGINE_DIED`, or
    `EXIT_DEVICE_FAILED`). Raises BadConfigError where the engine refuses."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = EngineProcess(command)
    try:
        await engine.start()
    except OSError as error:
        print(f"vLLM could not be executed: {error}", file=sys.stderr)
        return EXIT_ENGINE_NOT_STARTED
    ended, stopped = asyncio.create_task(engine.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if stopped.done():
        await engine.stop(grace_seconds=SHUTDOWN_TIMEOUT_SECONDS)
        ended.cancel()
        return 0
    stopped.cancel()
    lines = await engine.last_lines()
    if (why := refusal(ended.result(), lines)) is not None:
        raise BadConfigError(why)
    lost = lost_rank(lines)
    what = f"{lost}; " if lost is not None else ""
    code, what = blamed(EXIT_ENGINE_DIED, f"{what}vLLM ended with code {ended.result()}", lines)
    print(f"{what}.\n{digest(lines)}", file=sys.stderr)
    return code


def main() -> int:
    """Run the follower; the exit codes are in `fulcrum.api.worker`."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    try:
        config, pod = read_config(os.environ)
        check_locked_memory(config, unlimited=may_lock_memory())
        model = local_model(config.model)
        command = engine_command(
            config, pod, model=model, environment=os.environ, facts=vllm_facts(version=vllm_version())
        )
        logger.info(
            "follower_started pod=%s/%s cluster=%s pool=%s", pod.namespace, pod.name, config.cluster, config.pool
        )
        return asyncio.run(run_follower(command))
    except BadConfigError as error:
        print(f"the worker's configuration cannot be used: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG


if __name__ == "__main__":
    sys.exit(main())
