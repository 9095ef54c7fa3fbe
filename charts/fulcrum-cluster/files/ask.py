"""Ask the cluster for one answer; wait for it until TIMEOUT_SECONDS have passed."""

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request

deadline = time.monotonic() + float(os.environ["TIMEOUT_SECONDS"])
question = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
headers = {"Content-Type": "application/json"}
if key := os.environ.get("API_KEY"):
    headers["Authorization"] = f"Bearer {key}"
body = json.dumps(question).encode()
service, port = os.environ["SERVICE"], os.environ["PORT"]


def server():
    """Return the Service's name, or its address from the environment where there is no cluster DNS."""
    try:
        socket.getaddrinfo(service, port)
    except socket.gaierror:
        variable = service.split(".")[0].upper().replace("-", "_") + "_SERVICE_HOST"
        return os.environ.get(variable, service)
    return service


while True:
    try:
        request = urllib.request.Request(f"http://{server()}:{port}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            answer = json.load(reply)["choices"][0]["message"]["content"]
        print(f"answered: {answer!r}")
        sys.exit(0)
    except urllib.error.HTTPError as error:
        why = f"{error.code} {error.read(500).decode(errors='replace')}"
        if error.code not in (429, 502, 503, 504):
            sys.exit(f"refused: {why}")
    except (OSError, ValueError) as error:
        why = repr(error)
    if time.monotonic() > deadline:
        sys.exit(f"no answer in time: {why}")
    print(f"not yet: {why}", flush=True)
    time.sleep(2)
