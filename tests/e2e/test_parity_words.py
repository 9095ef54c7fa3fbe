"""Parity with a real model, on two engines in a local Kubernetes of their own; KV in FP8 and bf16 where the CPU can."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_parity import CALLED, TEXTS, Apis, calls, question
from lanes import state_folder
from local_cluster import QUICKSTART, Cluster, local_cluster, wait_until
from manifests import changed
from parity import PROMPT_WORDS, SHORT_PROMPT_WORDS, assert_chat_parity, assert_completion_parity
from this_machine import FP8

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=["fp8", "bf16"] if FP8 else ["float32"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`examples/quickstart.yaml` with two workers. Promises are so wide that no request is kept on one worker."""
    folder = state_folder(tmp_path_factory, "parity")
    manifest = changed(
        QUICKSTART,
        folder / "parity.yaml",
        pool={"workers": {"min": 2, "max": 2}},
        kv_cache={"dtype": "bf16"} if request.param == "bf16" else None,
        gateway={"replicas": 1},
        admission={"policy": "Off"},
        slo={"ttft": "60s", "tpot": "10s"},
        engine_args=("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    )
    with local_cluster(folder, manifest=manifest) as cluster:
        wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=480)
        wait_until("1P:1D", lambda: cluster.roles() == {"prefill": 1, "decode": 1}, seconds=120)
        yield cluster


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("words", PROMPT_WORDS if FP8 else SHORT_PROMPT_WORDS)
def test_completions(real: Cluster, words: int, stream: bool) -> None:
    assert_completion_parity(real, words, stream=stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_chat(real: Cluster, stream: bool) -> None:
    assert_chat_parity(real, stream=stream)


def test_apis(real: Cluster) -> None:
    asked = question(real)
    engine = Apis(url=f"http://{real.workers()[0].ip}:8000", key=real.token(), model=real.name)
    both = Apis(url=real.endpoint(), key="unused", model=real.name)
    try:
        alone = {call.__name__: call(engine, asked) for call in TEXTS}
        assert all(alone.values())
        assert {call.__name__: call(both, asked) for call in TEXTS} == alone
        assert calls(both, asked) == [CALLED] * 6
        assert all("," in path for path in both.paths), both.paths  # two workers for each
    finally:
        engine.close()
        both.close()
