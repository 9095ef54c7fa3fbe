"""CEL as Kubernetes evaluates it in `x-kubernetes-validations`: compile once, evaluate often.

The expression engine is the Rust crate behind `common-expression-language`; `cel_functions` adds the function libraries
of Kubernetes that it lacks, and `cel_values` prepares the values. Not available: comprehensions with two variables and
`cel.bind`, which the engine's parser does not know.
Source: https://kubernetes.io/docs/reference/using-api/cel/
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

import cel
from cel.stdlib import add_stdlib_to_context

from fulcrum.api.schema.cel_functions import KUBERNETES_FUNCTIONS
from fulcrum.api.schema.cel_optional import without_optional_syntax

# A function that refuses its argument is an answer to the client; the engine would log each one as well.
logging.getLogger("cel").setLevel(logging.ERROR)

_CALLBACK_FAILED = re.compile(
    r"Function '(?P<name>[^']+)' error: (?:Python function call failed: (?:\w+: )?)?(?P<text>.*?)"
    r"(?:\. Check function arguments and their types\.?)?$",
    re.DOTALL,
)
_UNDEFINED = re.compile(r"Undefined variable or function: '(?P<name>[^']+)'")


class CelSyntaxError(ValueError):
    """The expression cannot be compiled."""


class CelEvaluationError(RuntimeError):
    """The expression failed while it was evaluated; the text is that of cel-go where it has one."""


class CelProgram:
    """A compiled expression."""

    def __init__(self, source: str) -> None:
        """Compile `source`; raises CelSyntaxError."""
        self.source = source
        try:
            self._program = cel.compile(without_optional_syntax(source))
        except ValueError as error:
            raise CelSyntaxError(str(error)) from error
        self.variables = frozenset(self._program.variables())
        called = set(self._program.functions())
        # Registering a function costs more than most rules; the engine names `math.least` just `least`.
        self._functions = {
            name: function for name, function in _all_functions().items() if name.rpartition(".")[2] in called
        }

    def evaluate(self, variables: dict[str, Any]) -> Any:
        """Evaluate with `variables`; an optional that is absent is `absent()`. Raises CelEvaluationError."""
        context = cel.Context(variables, self._functions)
        try:
            return self._program.execute(context)
        except (KeyError, IndexError, ZeroDivisionError, OverflowError, TypeError, ValueError, RuntimeError) as error:
            raise CelEvaluationError(_text_of(error)) from error


@functools.cache
def _all_functions() -> dict[str, Callable[..., Any]]:
    context = cel.Context()
    add_stdlib_to_context(context)
    return {**context.functions, **KUBERNETES_FUNCTIONS}


@functools.lru_cache(maxsize=4096)
def compiled(source: str) -> CelProgram:
    """The program of an expression, compiled once per process; raises CelSyntaxError."""
    return CelProgram(source)


def absent() -> Any:
    """An optional without a value (`oldSelf` on create, with `optionalOldSelf`)."""
    return cel.OptionalValue.none()


def present(value: Any) -> Any:
    """An optional with a value."""
    return cel.OptionalValue.of(value)


_FIXED_TEXTS: tuple[tuple[type[Exception], str], ...] = (
    (ZeroDivisionError, "division by zero"),
    (OverflowError, "integer overflow"),
    (TypeError, "no such overload"),
)


def _text_of(error: Exception) -> str:
    for kind, text in _FIXED_TEXTS:
        if isinstance(error, kind):
            return text
    text = str(error)
    if isinstance(error, KeyError):
        return f"no such key: {error.args[0]}"
    if undefined := _UNDEFINED.search(text):
        return f"undeclared reference to '{undefined['name']}'"
    failed = _CALLBACK_FAILED.match(text)
    return failed["text"] if failed else text
