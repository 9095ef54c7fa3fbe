"""Unmodified clients and load generators against an endpoint of real engines: which of their calls work.

    python benchmarks/clients.py                              # brings up a cluster of one prefill and one decode worker
    python benchmarks/clients.py --endpoint URL --model NAME  # uses the one that is there

Clients: openai, anthropic, LangChain, LlamaIndex, LiteLLM, each with chat, streams, and tools with a forced choice;
reasoning of chats and messages. An endpoint needs vLLM's parsers of tools and reasoning, as `bring_up` sets them.
Load generators: aiperf, guidellm, inference-perf, `vllm bench serve`, each of which runs to its end. They have
environments of their own under build/, out of requirements/clients.lock and requirements/inference-perf.lock (3.12).

Prints a table, client, call, works, why not, and the share of requests that two engines served. Exits with 1 where a
call does not work.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from clients_loads import GENERATORS, Target, programs_of, run
from local_cluster import QUICKSTART, REPOSITORY, Cluster, local_cluster, wait_until

from fulcrum.api.names import PORT_GATEWAY_INSIDE

MODEL_FOLDER = Path.home() / ".cache" / "fulcrum" / "models" / "smollm2"
READY_SECONDS = 480.0
THINKING = {"<file_sep>": "<think>", "<gh_stars>": "</think>"}
"""Tokens that the small model does not use, and what they are called so that it can be told to think."""
FIRST_THOUGHT = "Let me think"
"""The template begins the reasoning with it: after `<think>` alone, which the model was not trained on, its likeliest
answer is a line break and the end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--endpoint", help="a gateway's URL, without /v1")
    parser.add_argument("--model", default="quickstart", help="the name that it serves")
    parser.add_argument("--tokenizer", type=Path, default=MODEL_FOLDER, help="folder of its tokenizer")
    parser.add_argument("--only", choices=("calls", "loads"))
    parser.add_argument("--keep", type=Path, help="folder for what the generators print and write")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        endpoint, cluster = options.endpoint, None
        if endpoint is None:
            cluster = stack.enter_context(bring_up(folder / "home"))
            endpoint = cluster.endpoint()
        target = Target(url=endpoint, model=options.model, tokenizer=options.tokenizer.resolve())
        rows = []
        if options.only != "loads":
            rows += calls(target)
        if options.only != "calls":
            rows += loads(target, folder)
        if cluster is not None:
            print(split_legs(cluster))
    sys.exit(show(rows))


@contextmanager
def bring_up(home: Path) -> Iterator[Cluster]:
    """`examples/quickstart.yaml` with one worker for each role. Promises are so wide that no request is turned away."""
    document = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    spec = document["spec"]
    spec["pools"][0]["workers"] = {"min": 2, "max": 2}
    spec["slo"] = {"ttft": "60s", "tpot": "10s"}
    spec["gateway"] = {"replicas": 1}
    home.mkdir(parents=True, exist_ok=True)
    spec["engine"]["args"] = [
        # Without a parser vLLM answers with the arguments as text, even where the choice is forced.
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        # This parser separates reasoning only where a request's `chat_template_kwargs` ask for it.
        "--reasoning-parser", "deepseek_v3", "--tokenizer", str(thinking_tokenizer(home / "tokenizer")),
        "--reasoning-config", json.dumps({"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}),
    ]  # fmt: skip
    manifest = home / "clients.yaml"
    manifest.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    with local_cluster(home, manifest=manifest) as cluster:
        wait_until("the cluster to be Available", lambda: cluster.condition("Available") == "True", seconds=480)
        wait_until("1P:1D", lambda: cluster.roles() == {"prefill": 1, "decode": 1}, seconds=READY_SECONDS)
        yield cluster


def thinking_tokenizer(folder: Path) -> Path:
    """A folder with the model's tokenizer, which has tokens that begin and end reasoning, and a template with them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(MODEL_FOLDER / name, folder)
    text = (MODEL_FOLDER / "tokenizer.json").read_text(encoding="utf-8")
    for unused, name in THINKING.items():
        text = text.replace(json.dumps(unused), json.dumps(name))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    template = (MODEL_FOLDER / "chat_template.jinja").read_text(encoding="utf-8")
    begun = f"{{% if thinking %}}<think>{FIRST_THOUGHT}{{% endif %}}"
    (folder / "chat_template.jinja").write_text(template + begun, encoding="utf-8")
    return folder


def calls(target: Target) -> list[tuple[str, str, str]]:
    """Rows of the clients: client, call, why it does not work."""
    programs = programs_of("clients", REPOSITORY)
    assert programs is not None
    job = json.dumps({"url": target.url, "model": target.model})
    done = subprocess.run(
        [programs / "python", Path(__file__).with_name("client_calls")],
        input=job, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"client_calls ended with {done.returncode}")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def loads(target: Target, folder: Path) -> list[tuple[str, str, str]]:
    """Rows of the load generators."""
    rows = []
    for generator in GENERATORS:
        programs = programs_of(generator.environment, REPOSITORY)
        if programs is None:
            rows.append((generator.name, "a run", "not tried: it needs Python 3.12, which is not here"))
            continue
        version, why = run(generator, programs, target, folder / generator.environment / generator.name.split()[0])
        rows.append((f"{generator.name} {version}", "a run", why))
    return rows


def split_legs(cluster: Cluster) -> str:
    """How many legs of each kind the gateway has had answered."""
    gateway = cluster.pods("gateway")[0]
    url = f"http://{gateway['status']['podIP']}:{PORT_GATEWAY_INSIDE}/metrics"
    import urllib.request

    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    legs = [line for line in text.splitlines() if line.startswith("fulcrum_gateway_legs_total")]
    return "\n".join(legs)


def show(rows: list[tuple[str, str, str]]) -> int:
    """Print the table; the exit code."""
    print("\n| client | call | works | why not |\n|---|---|---|---|")
    for client, call, why in rows:
        short = " ".join(why.split())[:200].replace("|", "/")
        print(f"| {client} | {call} | {'no' if why else 'yes'} | {short} |")
    failed = sum(bool(why) for _, _, why in rows)
    print(f"\n{len(rows) - failed} of {len(rows)} work")
    return 1 if failed else 0


if __name__ == "__main__":
    main()
