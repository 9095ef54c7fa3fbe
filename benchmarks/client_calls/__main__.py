"""Calls of unmodified clients to an endpoint. `clients.py` starts this folder in an environment with the clients alone.

The job, `{"url", "model"}`, comes on standard input. Each line of the output is a row: client, call, and why it does
not work (empty: it does).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from importlib.metadata import version

from asked import Call
from of_anthropic import anthropic_calls
from of_frameworks import langchain_calls, litellm_calls, llama_index_calls
from of_openai import openai_calls, openai_reasoning_calls

CLIENTS: dict[str, Callable[[str, str], dict[str, Call]]] = {
    "openai": lambda url, model: openai_calls(url, model) | openai_reasoning_calls(url, model),
    "anthropic": anthropic_calls,
    "langchain-openai": langchain_calls,
    "llama-index-llms-openai-like": llama_index_calls,
    "litellm": litellm_calls,
}


def main() -> None:
    job = json.load(sys.stdin)
    for client, make in CLIENTS.items():
        for call, run in make(job["url"], job["model"]).items():
            why = ""
            try:
                run()
            except Exception as error:  # noqa: BLE001  whatever a client raises is what the row says
                why = f"{type(error).__name__}: {error}".strip()
            print(json.dumps([f"{client} {version(client)}", call, why]), flush=True)


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())  # litellm and llama-index want one
    main()
