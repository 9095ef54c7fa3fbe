"""What `fulcrum dashboard --demo` shows: the load and the cluster of `fulcrum simulate --demo`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import click

from fulcrum.cli.cluster_file import read_cluster_file
from fulcrum.cli.dashboard.recording import ORIGIN, Recording, Replayed, record
from fulcrum.cli.dashboard.serve import Shown
from fulcrum.cli.shipped import DEMO_LOAD, SIMULATED, shipped
from fulcrum.dashboard import Board
from fulcrum.dashboard.past import board_with_past
from fulcrum.simulation.from_spec import cluster_model
from fulcrum.simulation.generate import WORKLOADS


def recorded() -> Recording:
    """Simulate the shipped cluster under the shipped load; takes a few seconds."""
    spec = read_cluster_file(shipped(SIMULATED)).spec
    return record(spec, cluster_model(spec, profiles={}, start_seconds=60.0), WORKLOADS[DEMO_LOAD](1))


@asynccontextmanager
async def opened_recording() -> AsyncIterator[Shown]:
    """Yield a board that replays the run; its charts hold the loop before."""
    click.echo("Recording a simulated run of a few minutes; this takes a few seconds.")
    recording = recorded()
    board = await board_with_past(
        lambda clock: Replayed(recording, now=clock), origin=ORIGIN, past_seconds=recording.seconds
    )
    yield _Replay(board=board)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replay:
    board: Board

    async def run(self) -> None:
        await self.board.run()
