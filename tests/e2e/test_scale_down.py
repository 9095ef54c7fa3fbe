"""A worker that the spec no longer wants is drained first: its work ends well, then it goes."""

from __future__ import annotations

import json
import subprocess

import pytest
from answers import Question
from local_cluster import BIN, Cluster, wait_until

from fulcrum.replay import Outcome
from load import SteadyLoad

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


def test_a_smaller_maximum_drains_first_and_loses_nothing(whole: Cluster, questions: list[Question]) -> None:
    before = {worker.name: worker.restarts for worker in whole.workers()}
    role = r".metadata.labels.fulcrum\.dev/role"
    columns = f"custom-columns=NAME:.metadata.name,ROLE:{role},GOING:.metadata.deletionTimestamp"
    selector = f"fulcrum.dev/cluster={whole.name},app.kubernetes.io/component=worker"
    watch = subprocess.Popen(
        [BIN / "kubectl", "get", "pods", "-l", selector, "-o", columns, "--watch", "--no-headers"],
        env=whole.env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with SteadyLoad(whole.endpoint(), questions, rate=4) as load:
            wait_until("answers before", lambda: load.count(Outcome.OK) >= 8, seconds=120)
            patch = [{"op": "replace", "path": "/spec/pools/0/workers/max", "value": 3}]
            whole.kubectl("patch", "ic", whole.name, "--type", "json", "-p", json.dumps(patch))
            wait_until("three workers", lambda: len(whole.workers()) == 3, seconds=300)
            ok = load.count(Outcome.OK)
            wait_until("answers after", lambda: load.count(Outcome.OK) >= ok + 8, seconds=120)
        wait_until("3/3", lambda: whole.cluster()["status"].get("ready") == "3/3", seconds=120)
    finally:
        watch.terminate()
        seen = [line.split() for line in watch.communicate()[0].splitlines()]
    assert all(answered.right for answered in load.answered), load.summary()
    left = {worker.name: worker.restarts for worker in whole.workers()}
    (gone,) = before.keys() - left.keys()
    assert left == {name: restarts for name, restarts in before.items() if name != gone}
    states = [(label, going != "<none>") for name, label, going in seen if name == gone]
    assert ("draining", False) in states, f"{gone} was not drained before it was deleted: {states}"
    assert all(label == "draining" for label, going in states if going), states
    assert whole.condition("Available") == "True"
