"""Discrete-event simulation of a cluster, driven by the production decisions: no network, no wall clock.

`engine.simulate(workload, cluster, policy, slo=...)` returns a `Result`.
"""
