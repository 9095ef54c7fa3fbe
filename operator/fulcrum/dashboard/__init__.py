"""The dashboard: one read-only page about all clusters, and the stream of changes that keeps it live.

`facts` is what a source hands in, `view` (pure) makes the page's documents of it, `board` keeps what is shown, and
`server` sends it to browsers as server-sent events. Only public figures leave this room: see `public`.
"""

from fulcrum.dashboard.board import Board
from fulcrum.dashboard.facts import ClusterFacts, Reading, Source
from fulcrum.dashboard.server import PAGE_PATH, routes

__all__ = ["PAGE_PATH", "Board", "ClusterFacts", "Reading", "Source", "routes"]
