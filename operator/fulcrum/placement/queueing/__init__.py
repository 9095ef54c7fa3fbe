"""Which share of requests stays inside the SLO, waiting included: analytic estimates for sizing a role.

`Stations` are pools of one role: (speed of one worker, number of workers). Every estimate lies in [0, 1], falls with
the rate and the lengths, and rises with workers. `docs/concepts/sizing.md` says which approximations these are, and how
good.
"""

from fulcrum.placement.queueing.decode import decode_admitted, decode_attainment, decode_step
from fulcrum.placement.queueing.mixed import MixedAttainment, mixed_admitted, mixed_attainment
from fulcrum.placement.queueing.prefill import Stations, prefill_attainment

__all__ = [
    "MixedAttainment",
    "Stations",
    "decode_admitted",
    "decode_attainment",
    "decode_step",
    "mixed_admitted",
    "mixed_attainment",
    "prefill_attainment",
]
