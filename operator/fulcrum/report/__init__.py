"""What one tick comes to: the plan, and what users read of it. Pure."""

from fulcrum.report.plan import BalancePlan, plan
from fulcrum.report.status import PlanEvent, stopped_status

__all__ = [
    "BalancePlan",
    "PlanEvent",
    "plan",
    "stopped_status",
]
