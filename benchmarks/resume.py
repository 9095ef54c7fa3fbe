"""SIGKILL of decode workers in the middle of streams, on real vLLM: does each client get what it would have got?

    python benchmarks/resume.py --kills 50                     # brings up examples/quickstart.yaml, about half an hour
    python benchmarks/resume.py --kills 5 --kubeconfig F       # uses the cluster that is there
    python benchmarks/resume.py --kills 5 --results FILE       # appends to FILE, to go on another time

Sixteen streams, completions and chats, are kept open over two prefill and two decode workers. A decode worker is killed
(in turn the whole Pod's main process, and the engine's alone) when it is in the middle of at least five of them; the
next kill waits until it is back, and nothing new is asked for meanwhile. Each stream must be token for token the greedy
answer that one engine alone gave before, with one role, one finish reason, one end mark and the right usage. Exits with
0 only when all are.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from cut_streams import Stream, Streams, questions_of
from local_cluster import Cluster, Worker, local_cluster, metric, wait_until
from processes import engine_core, processes
from this_machine import deadline_seconds

STREAMS = 16
LEAST_CUT = 5
PATIENCE_SECONDS = 15.0


def kill_one(cluster: Cluster, streams: Streams, *, engine: bool, least: int = LEAST_CUT) -> tuple[str, list[Stream]]:
    """Kill a decode worker with SIGKILL; its name, and the streams that it was in the middle of.

    It has `least` of them; fewer when so many do not come together soon.
    """
    deciders = [worker for worker in cluster.workers() if worker.role == "decode" and worker.ready]
    mains = {worker.name: processes(cluster, pod=worker.name)[0] for worker in deciders}
    victims = {name: engine_core(main) if engine else main for name, main in mains.items()}

    started = time.monotonic()

    def busy() -> str | None:
        name = max(victims, key=lambda each: len(streams.within(each)))
        enough = least if time.monotonic() - started < deadline_seconds(PATIENCE_SECONDS) else min(least, LEAST_CUT)
        return name if len(streams.within(name)) >= enough else None

    name = wait_until("streams in the middle of a decode worker", busy, seconds=60, every_seconds=0.02)
    cut = streams.within(name)
    victims[name].kill()
    return name, cut


def wait_for_return(cluster: Cluster, before: Sequence[Worker], name: str) -> None:
    """Until the killed worker was started again, and all are ready."""
    restarts = next(worker.restarts for worker in before if worker.name == name)

    def back() -> bool:
        workers = cluster.workers()
        again = next(worker for worker in workers if worker.name == name)
        return again.restarts > restarts and all(worker.ready for worker in workers)

    wait_until(f"{name} to be back", back, seconds=600)


@contextmanager
def everybody_let_in(cluster: Cluster) -> Iterator[None]:
    """Admission switched off meanwhile: it would keep streams away from the few workers that are left."""
    before = cluster.cluster()["spec"].get("admission", {}).get("policy")
    cluster.patch({"admission": {"policy": "Off"}})
    try:
        wait_until("gateways with the policy Off", lambda: _all_gateways_say(cluster, "Off"), seconds=60)
        yield
    finally:
        cluster.patch({"admission": {"policy": before}})
        wait_until(f"gateways with the policy {before}", lambda: _all_gateways_say(cluster, str(before)), seconds=60)


def _all_gateways_say(cluster: Cluster, policy: str) -> bool:
    pods = cluster.pods("gateway")
    wanted = cluster.read("deployments", f"{cluster.name}-gateway")["spec"]["replicas"]
    return len(pods) == wanted and all(
        f'"policy":"{policy}"' in json.dumps(pod["spec"]).replace("\\", "").replace('": "', '":"')
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        for pod in pods
    )


def resumed(cluster: Cluster) -> int:
    """Streams that the gateways have gone on with on another worker, so far."""
    name = "fulcrum_gateway_resumes_total"
    pods = cluster.pods("gateway")
    return int(sum(metric(f"http://{pod['status']['podIP']}:8082/metrics", name) for pod in pods))


def run(cluster: Cluster, kills: int, results: Path | None) -> int:
    """Kill so often; the number of streams that were not as they should be."""
    cluster.patch_ratio(2, 2)
    wait_until("2P:2D", lambda: cluster.roles() == {"prefill": 2, "decode": 2}, seconds=120)
    questions = questions_of(cluster, 12)
    print(f"{len(questions)} questions with {len(questions[0].ids)} tokens each", flush=True)
    wrong = cut_in_all = 0
    gaps: list[float] = []
    with everybody_let_in(cluster), Streams(cluster.endpoint(), questions, STREAMS) as streams:
        for number in range(kills):
            before = cluster.workers()
            started = time.monotonic()
            name, cut = kill_one(cluster, streams, engine=number % 2 == 1)
            wait_until("the streams to end", lambda cut=cut: all(one not in streams.open for one in cut), seconds=600)
            problems = [problem for one in cut if (problem := one.wrong())]
            gap = max((one.longest_gap_seconds() for one in cut), default=0.0)
            gaps += [one.longest_gap_seconds() for one in cut]
            cut_in_all += len(cut)
            wrong += len(problems)
            streams.paused = True
            wait_for_return(cluster, before, name)
            streams.paused = False
            line = {
                "kill": number + 1, "what": "engine" if number % 2 else "pod", "worker": name, "cut": len(cut),
                "right": len(cut) - len(problems), "longest_gap_seconds": round(gap, 2),
                "seconds": round(time.monotonic() - started, 1), "problems": [problem[:300] for problem in problems],
            }  # fmt: skip
            print(json.dumps(line), flush=True)
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    others = [problem for one in streams.ended if (problem := one.wrong())]
    print(
        f"{kills} kills; {cut_in_all} streams cut in the middle, {cut_in_all - wrong} of them right; "
        f"{len(streams.ended)} streams in all, {len(others)} wrong; {streams.refused} turned away; "
        f"longest pause of a cut stream: median {median(gaps or [0.0]):.2f} s, most {max(gaps, default=0):.2f} s"
    )
    for problem in others[:5]:
        print(f"  {problem[:500]}")
    return len(others)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--kubeconfig", type=Path, help="use the cluster that is there")
    parser.add_argument("--results", type=Path, help="append one JSON line for each kill to this file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the cluster is taken down
    if arguments.kubeconfig is not None:
        return run(Cluster(kubeconfig=arguments.kubeconfig, name="quickstart"), arguments.kills, arguments.results)
    with tempfile.TemporaryDirectory() as home, local_cluster(Path(home)) as cluster:
        wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=240)
        return run(cluster, arguments.kills, arguments.results)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
