"""The same parity with a bf16 KV cache, on two engines in a local Kubernetes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lanes import state_folder
from local_cluster import QUICKSTART, Cluster, local_cluster, wait_until
from manifests import changed
from parity import assert_chat_parity, assert_completion_parity
from this_machine import FP8

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not FP8, reason="bf16 takes this CPU, which has no AVX-512, minutes for a prompt"),
]


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = state_folder(tmp_path_factory, "bf16")
    two = {"workers": {"min": 2, "max": 2}}
    manifest = changed(
        QUICKSTART, folder / "bf16.yaml", pool=two, kv_cache={"dtype": "bf16"}, gateway={"replicas": 1}
    )  # fmt: skip
    with local_cluster(folder, manifest=manifest) as cluster:
        wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=480)
        yield cluster


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("words", [20, 1100])
def test_completions(bf16: Cluster, words: int, stream: bool) -> None:
    assert_completion_parity(bf16, words, stream=stream)


def test_chat(bf16: Cluster) -> None:
    assert_chat_parity(bf16, stream=True)
