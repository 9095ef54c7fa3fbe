"""`fulcrum simulate` with every policy that ours is compared with, and a bound that no planner exceeds.

    python benchmarks/contest.py --demo --policy all
    python benchmarks/contest.py --trace conv.csv --cluster cluster.yaml --policy ours,static,optimum --speed 3

Takes the options of `fulcrum simulate`. It judges nothing: `policies.py` and `robust.py` do.
"""

from __future__ import annotations

import click
from contests.contestants import CONTESTANTS

from fulcrum.cli.simulate import command

POLICIES = "\n".join(f"  {name:20} {each.says}" for name, each in CONTESTANTS.policies.items())
contest = click.Command(
    "contest",
    params=command.params,
    callback=command.callback,
    help=f"Compare policies on a trace, simulated: those of `fulcrum simulate`, and their rivals.\n\n"
    f"\b\nPolicies (`all` for every one, `static-P:D` for one split):\n{POLICIES}",
)


def main() -> None:
    """Run the command."""
    contest.main(obj=CONTESTANTS)


if __name__ == "__main__":
    main()
