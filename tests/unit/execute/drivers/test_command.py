"""Arguments of programs: each value is one word or the end of one, and never an option."""

from typing import Any

import pytest

from deputize.core.contract.command import Command
from deputize.core.contract.contract import ResourceLimits
from deputize.core.errors import SemanticViolation
from deputize.execute.drivers.command import build_arguments, read_limits

pytestmark = pytest.mark.requirement("EXE-1")


def build(*words: str, **values: Any) -> tuple[str, ...]:
    return build_arguments(Command(program="/bin/tool", sha256="0" * 64, arguments=words), values)


def test_values_are_words_whatever_a_shell_would_make_of_them() -> None:
    value = "$(reboot); `id` | cat > /etc/passwd && 'x' \"y\" * ~ {z}\n"
    assert build("{a}", "--b={a}", "file:{a}", a=value) == (value, f"--b={value}", f"file:{value}")


def test_values_that_are_not_given_are_left_out_with_what_stands_before_them() -> None:
    assert build("-v", "--b={b}", "{c}", c="x") == ("-v", "x")


def test_numbers_and_truths_are_written_as_text() -> None:
    assert build("{a}", "--b={b}", "{c}", a=True, b=-7, c=1.5) == ("true", "--b=-7", "1.5")


def test_braces_that_enclose_no_word_are_text() -> None:
    assert build("{ print $1 }", "{}", "[.[] | {a: .b}]") == ("{ print $1 }", "{}", "[.[] | {a: .b}]")


@pytest.mark.parametrize("value", ["-o", "--output=/etc/passwd", "-", -7])
def test_a_value_that_stands_alone_is_never_an_option(value: Any) -> None:
    with pytest.raises(SemanticViolation, match="begins with a hyphen") as raised:
        build("{a}", a=value)
    assert raised.value.nothing_happened
    assert build("--a={a}", "x{a}", a=value) == (f"--a={value}", f"x{value}")


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_characters_that_no_argument_has_are_refused(value: str) -> None:
    with pytest.raises(SemanticViolation, match="characters"):
        build("{a}", a=value)


def test_limits_of_a_contract_are_those_of_the_sandbox() -> None:
    limits = read_limits(ResourceLimits(cpu="500m", memory="64Mi", ephemeral_storage="1Gi", processes=8))
    assert (limits.cpus, limits.memory_bytes, limits.storage_bytes, limits.processes) == (0.5, 2**26, 2**30, 8)
    assert read_limits(ResourceLimits(cpu="2")).cpus == 2
