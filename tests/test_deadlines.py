"""Deadlines of tests follow the machine, and no test asserts that something took less than a fixed time.

Found by their syntax, in all tests: time-outs, ends that are reckoned from a clock, and waits for processes and threads
without `deadline_seconds`; and asserts that bound a difference of clock readings from above by a number. Such a bound
is a ratio of two costs of the same run (`cost_ratio`), a deadline, or belongs into a benchmark. What only shows that
something took at least so long is not looked for: a slow machine cannot break it.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = re.compile(r"(time\.)?(monotonic|perf_counter|process_time|thread_time)(_ns)?|time\.time|.*loop(\(\))?\.time")
READS_CLOCK = re.compile(r"(monotonic|perf_counter|process_time|thread_time|time)(_ns)?\(\)")
WAITS = re.compile(r"subprocess\.run|.*\.(communicate|check_output|check_call)|.*urlopen")
FOLLOWS = re.compile(r"deadline_seconds\(|left_seconds|PATIENT_SECONDS")
"""In the text of a time-out that goes through the factor."""

ALLOWED = {
    "machine.py self._end": "the end of every poll: its seconds have gone through the factor",
    "gateway/fuzz_site.py wait_seconds": "shows that nothing comes; where an answer must come, it is PATIENT_SECONDS",
    "e2e/test_operator_restart.py until": "how long the workers are watched",
    "gateway/dispatch/test_leg_deadlines.py time.monotonic() - began < PROMISE_SECONDS": "the promise of the request",
    "worker_image/test_partial_recompute.py seconds": "a client that gives up soon, by design",
    "local/kubelet/test_alarm.py 0.2": "shows that nothing rings",
}
"""File and code, by how they begin, and why they do not follow the machine."""


def is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and CLOCKS.fullmatch(ast.unparse(node.func)) is not None


def follows(node: ast.AST) -> bool:
    return FOLLOWS.search(ast.unparse(node)) is not None or ast.unparse(node) == "None"


def is_fixed(node: ast.AST) -> bool:
    """Whether it is made of numbers and constants alone."""
    names = [ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Name)]
    numbers = any(isinstance(part, ast.Constant) and isinstance(part.value, int | float) for part in ast.walk(node))
    return all(name.isupper() for name in names) and (numbers or bool(names))


def timeouts(call: ast.Call) -> list[ast.expr]:
    """The expressions that bound how long a call waits."""
    name = ast.unparse(call.func)
    named = [each.value for each in call.keywords if each.arg == "timeout"]
    if name == "asyncio.wait_for":
        return call.args[1:2] or named
    if name == "asyncio.timeout":
        return call.args
    if WAITS.fullmatch(name):
        return named
    if name.endswith((".wait", ".join")) and len(call.args) + len(named) == 1:  # of processes, threads and events
        return [each for each in (*call.args, *named) if isinstance(each, ast.Constant) and isinstance(each.value, int)]
    return []


def fixed_waits(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (each for each in timeouts(node) if not follows(each))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.BinOp):
            end = node.value
            if isinstance(end.op, ast.Add) and is_clock(end.left) and not follows(end.right):
                yield node


class Durations:
    """Names of one function that hold differences of clock readings, or what was made of such."""

    def __init__(self, function: ast.AST) -> None:
        self._names: set[str] = set()
        known = -1
        while known < len(self._names):
            known = len(self._names)
            for node in ast.walk(function):
                self._names.update(self._made_by(node))

    def _made_by(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Assign) and self.within(node.value):
            for target in node.targets:
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            kept_in = node.func.value.value if isinstance(node.func.value, ast.Subscript) else node.func.value
            if any(self.within(each) for each in node.args):
                yield ast.unparse(kept_in)

    def within(self, node: ast.AST) -> bool:
        """Whether a duration is in it that is not divided by another one."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and self.within(node.right):
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and is_clock(node.left):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._names
        return any(self.within(each) for each in ast.iter_child_nodes(node))


def below(compare: ast.Compare) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(smaller, larger) of each part of a comparison."""
    sides = itertools.pairwise([compare.left, *compare.comparators])
    for operator, (left, right) in zip(compare.ops, sides, strict=True):
        if isinstance(operator, ast.Lt | ast.LtE):
            yield left, right
        elif isinstance(operator, ast.Gt | ast.GtE):
            yield right, left


def fixed_bounds(tree: ast.Module) -> Iterator[ast.AST]:
    """Comparisons within asserts that bound a duration from above by a number."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            durations = Durations(function)
            asserted = [each.test for each in ast.walk(function) if isinstance(each, ast.Assert)]
            for compare in (part for test in asserted for part in ast.walk(test) if isinstance(part, ast.Compare)):
                for less, more in below(compare):
                    if durations.within(less) and is_fixed(more) and not durations.within(more) and not follows(more):
                        yield compare


def found(text: str) -> list[tuple[int, str]]:
    """Line and code of what does not follow the machine."""
    tree = ast.parse(text)
    nodes = [*fixed_waits(tree), *(fixed_bounds(tree) if READS_CLOCK.search(text) else ())]
    return sorted({(getattr(node, "lineno", 0), ast.unparse(node)) for node in nodes})


def test_deadlines_follow_the_machine_and_durations_have_no_fixed_bounds() -> None:
    wrong, allowed = [], set()
    for path in sorted(TESTS.rglob("*.py")):
        name = str(path.relative_to(TESTS))
        for line, code in found(path.read_text()):
            entry = next((each for each in ALLOWED if f"{name} {code}".startswith(each)), None)
            if entry is None:
                wrong.append(f"{name}:{line}: {code}")
            else:
                allowed.add(entry)
    assert wrong == [], "\n".join(wrong)
    assert allowed == set(ALLOWED), "it is gone: strike it"


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.wait_for(task, 5)",
        "await asyncio.wait_for(task, timeout=seconds)",
        "async with asyncio.timeout(START_SECONDS): pass",
        "subprocess.run(command, timeout=60)",
        "process.communicate(timeout=30)",
        "urllib.request.urlopen(url, timeout=5)",
        "process.wait(60)",
        "thread.join(timeout=60)",
        "deadline = time.monotonic() + 30",
        "end = asyncio.get_running_loop().time() + seconds",
        "assert time.monotonic() - began < 5",
        "took = time.perf_counter() - began; assert took * 1000 <= MOST_MILLISECONDS",
        "all.append(time.process_time() - began); middle = statistics.median(all); assert 0.1 > middle",
        "took = time.monotonic() - began; assert max(took, other) < 2 * LEASE_SECONDS",
    ],
)
def test_a_fixed_time_is_found(line: str) -> None:
    assert found(f"async def test():\n    {line}")


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.wait_for(task, deadline_seconds(5))",
        "process.wait()",
        "await asyncio.wait_for(task, None)",
        "' '.join(words); path.join(1, 2000)",
        "deadline = time.monotonic() + deadline_seconds(seconds)",
        "assert time.monotonic() - began >= 0.3",
        "assert time.monotonic() - began < deadline_seconds(5)",
        "small = time.process_time() - began; large = time.process_time() - began; assert large / small < 3",
        "small = time.process_time() - began; large = time.process_time() - began; assert large < 3 * small",
    ],
)
def test_what_follows_the_machine_is_not(line: str) -> None:
    assert found(f"async def test():\n    {line}") == []
