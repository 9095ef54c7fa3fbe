"""Which share of requests stays inside the SLO, waiting included: analytic estimates for sizing a role.

`Stations` are pools of one role: (speed of one worker, number of workers). Every estimate lies in [0, 1], falls with
the rate and the lengths, and rises with workers. `docs/concepts/sizing.md` says which approximations these are, and how
good.
"""

from fulcrum.balance.queueing.capacity import (
    backlog_seconds,
    decode_capacity_rate,
    goodput,
    joint_attainment,
    mixed_capacity_rate,
    mixed_goodput,
    prefill_capacity_rate,
)
from fulcrum.balance.queueing.decode import decode_attainment, decode_step, decode_wait
from fulcrum.balance.queueing.mixed import MixedAttainment, mixed_attainment
from fulcrum.balance.queueing.prefill import Stations, prefill_attainment

__all__ = [
    "MixedAttainment",
    "Stations",
    "backlog_seconds",
    "decode_attainment",
    "decode_capacity_rate",
    "decode_step",
    "decode_wait",
    "goodput",
    "joint_attainment",
    "mixed_attainment",
    "mixed_capacity_rate",
    "mixed_goodput",
    "prefill_attainment",
    "prefill_capacity_rate",
]
