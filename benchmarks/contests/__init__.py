"""Contests: ours against other planners, foresight and a bound, on loads by name and on random scenarios."""
