"""The typed error of everything that reads what a user wrote."""

from __future__ import annotations


class InvalidValueError(ValueError):
    """A value that cannot be used: says which, why, and what to write instead.

    `field` is the path from the object's root (`spec.slo.ttft`), or empty where the caller knows it better.
    """

    def __init__(self, *, value: object, problem: str, fix: str, field: str = "") -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.fix = fix
        where = f"{field}: " if field else ""
        super().__init__(f"{where}{value!r} {problem}; {fix}")
