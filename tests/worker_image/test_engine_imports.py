"""What makes an engine's start cheaper works with the installed vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import deadline_seconds

PROGRAM = """
import gc, json, sys
from fulcrum_worker.engine_imports import SERVER_MODULE, ENGINE_MODULE, import_without_collecting, inspect_in_process
for module in (SERVER_MODULE, ENGINE_MODULE, "vllm.no_such_module"):
    import_without_collecting(module)
inspect_in_process()
import subprocess
from vllm.model_executor.models.registry import ModelRegistry
started = []
subprocess.Popen.__init__ = lambda *args, **kwargs: started.append(args)
ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()
print(json.dumps([gc.isenabled(), gc.get_freeze_count() > 0, len(started),
                  [module in sys.modules for module in (SERVER_MODULE, ENGINE_MODULE)]]))
"""


@pytest.mark.integration
def test_a_model_is_looked_at_without_another_process(tmp_path: Path) -> None:
    """With an empty cache of vLLM's, as on a machine where no engine has run."""
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=deadline_seconds(600),
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True, 0, [True, True]]
    assert "vllm.no_such_module is not imported ahead" in done.stderr
    assert list(tmp_path.glob("modelinfos/*LlamaForCausalLM.json")), "the next start finds the answer"
