"""First tokens that nobody sees come when predicted, in order, and only to requests that still wait for theirs."""

from __future__ import annotations

from fulcrum.api.names import Role
from fulcrum.routing import ClusterView, Flight, Incoming, Route, route


def started(registry: ClusterView, now: float) -> Flight:
    incoming = Incoming(prompt_tokens=100, output_tokens=10)
    found = route(incoming, registry, now)
    assert isinstance(found, Route)
    return registry.start(incoming, found, now)


def test_time_passes_up_to_now() -> None:
    registry = ClusterView()
    (worker,) = registry.workers.put("m", Role.MIXED)
    first, second, third = (started(registry, 0.0) for _ in range(3))
    for flight, at in ((second, 2.0), (first, 1.0), (third, 3.0)):
        registry.expect_first_token(flight, at)
    registry.pass_time(0.9)
    assert (len(worker.prompts.legs), worker.answers.running) == (3, 0)
    registry.pass_time(1.0)
    assert (list(worker.prompts.legs), worker.answers.running) == ([second.load, third.load], 1)
    registry.finish(second, 1.5)
    registry.pass_time(10.0)
    assert (len(worker.prompts.legs), worker.answers.running) == (0, 2)
    registry.finish(first, 11.0)
    registry.finish(third, 11.0)
    assert worker.idle
