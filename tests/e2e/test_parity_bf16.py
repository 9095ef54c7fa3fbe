"""The same parity with a bf16 KV cache, on two engines of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from local_cluster import QUICKSTART, Cluster, wait_until
from parity import assert_chat_parity, assert_completion_parity
from this_machine import FP8

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not FP8, reason="bf16 takes this CPU, which has no AVX-512, minutes for a prompt"),
]

NAME = "parity-bf16"


@pytest.fixture(scope="module")
def bf16(quickstart: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers in the same local Kubernetes, once the first cluster is gone: memory is scarce."""
    quickstart.kubectl("delete", "ic", quickstart.name, "--ignore-not-found", "--wait=false")
    wait_until("no workers of the first cluster", lambda: not quickstart.workers(), seconds=240)
    document = yaml.safe_load(Path(QUICKSTART).read_text(encoding="utf-8"))
    document["metadata"]["name"] = NAME
    document["spec"]["engine"]["kvCache"]["dtype"] = "bf16"
    document["spec"]["pools"][0]["workers"] = {"min": 2, "max": 2}
    document["spec"]["gateway"]["replicas"] = 1
    file = tmp_path_factory.mktemp("bf16") / "cluster.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    quickstart.kubectl("apply", "-f", str(file))
    cluster = replace(quickstart, name=NAME)
    cluster.kubectl("wait", "--for=condition=Available", f"ic/{NAME}", "--timeout=480s")
    yield cluster
    cluster.kubectl("delete", "ic", NAME)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("words", [20, 1100])
def test_completions(bf16: Cluster, words: int, stream: bool) -> None:
    assert_completion_parity(bf16, words, stream=stream)


def test_chat(bf16: Cluster) -> None:
    assert_chat_parity(bf16, stream=True)
