"""Options that take a number within bounds."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from fulcrum.cli.app import main
from fulcrum.cli.number_range import NumberRange


def options(command: click.Command) -> Iterator[click.Parameter]:
    """All options of a command and of those below it."""
    yield from command.params
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below)


@pytest.mark.parametrize("value", ["nan", "NaN", "-nan"])
@pytest.mark.parametrize(
    "arguments",
    [("record", "--last"), ("top", "--interval"), ("kv", "--link"), ("plan", "--rate"), ("plan", "--budget")],
)
def test_nan_is_refused_with_the_name_of_the_option(arguments: tuple[str, str], value: str) -> None:
    command, option = arguments
    result = CliRunner().invoke(main, [command, f"{option}={value}"])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': {value} is not a number" in result.output


def test_no_option_with_bounds_takes_nan() -> None:
    bounded = [option for option in options(main) if isinstance(option.type, click.FloatRange)]
    assert len(bounded) > 8
    assert [option.name for option in bounded if not isinstance(option.type, NumberRange)] == []


@pytest.mark.parametrize(("value", "message"), [("0.5", "not in the range"), ("soon", "not a valid float")])
def test_bounds_hold(value: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        NumberRange(1, 3600).convert(value, None, None)
    assert NumberRange(1, 3600).convert("60", None, None) == 60.0
