"""`python -m fulcrum_worker`: the worker's agent. Configured by the environment alone; see `fulcrum_worker.config`."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import tempfile
from pathlib import Path

import msgspec

from fulcrum.api.names import Role
from fulcrum.api.worker import EXIT_BAD_CONFIG
from fulcrum.capacity.cpu import CPUINFO
from fulcrum_worker.agent import run_agent
from fulcrum_worker.config import BadConfigError, check_host_memory, check_locked_memory, check_machine, read_config
from fulcrum_worker.engine_access import ENV_AGENT_KEY, token_from
from fulcrum_worker.engine_command import EngineCommand, engine_command
from fulcrum_worker.engine_files import EngineFiles
from fulcrum_worker.engine_start import Roles, vllm_facts
from fulcrum_worker.kv.policy import offload_setting, vllm_version
from fulcrum_worker.memory import may_lock_memory, memory_limit_bytes, shm_bytes
from fulcrum_worker.models import local_model


def main() -> int:
    """Runs the agent; the exit codes are in `fulcrum.api.worker`."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    try:
        config, pod = read_config(os.environ)
        check_machine(config, CPUINFO.read_text(errors="replace") if CPUINFO.is_file() else "")
        check_locked_memory(config, unlimited=may_lock_memory())
        check_host_memory(config, shm_bytes=shm_bytes(), limit_bytes=memory_limit_bytes())
        if (tier := offload_setting(config, vllm_version())) is not None and tier.reason is not None:
            logging.getLogger(__name__).warning("offload_policy runs=%s reason=%r", tier.policy, tier.reason)
        model = local_model(config.model)
        logging.getLogger(__name__).info(
            "agent_started pod=%s/%s ip=%s cluster=%s pool=%s accelerator=%s model=%s",
            pod.namespace,
            pod.name,
            pod.ip,
            config.cluster,
            config.pool,
            config.accelerator,
            model or config.model,
        )
        facts = vllm_facts(version=vllm_version())
        with tempfile.TemporaryDirectory(prefix="fulcrum-") as folder:
            files = EngineFiles(Path(folder))

            key = secrets.token_hex(16) if config.sleep_mode else None
            environment = {**os.environ, **({} if key is None else {ENV_AGENT_KEY: key})}

            def command(role: Role) -> EngineCommand:
                told = msgspec.structs.replace(config, role=role)
                return engine_command(told, pod, model=model, environment=environment, files=files, facts=facts)

            return asyncio.run(
                run_agent(
                    config,
                    pod,
                    command(config.role),
                    token=token_from(os.environ),
                    key=key,
                    files=files,
                    turned=command if facts.roles is Roles.AT_START else None,
                )
            )
    except BadConfigError as error:
        print(f"the worker's configuration cannot be used: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG


if __name__ == "__main__":
    sys.exit(main())
