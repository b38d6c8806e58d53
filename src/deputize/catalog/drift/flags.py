"""What in a definition should make somebody look before it is served: things hidden, passed off, or said to the model.

A flag proves nothing and forbids nothing by itself: it keeps a definition waiting until an administrator has seen it.
Texts of a flag are visible characters only (`core/plain.py`), safe to print.

Above: `judge.py`, which asks. Below: `core/`.
"""

from collections.abc import Collection
from enum import StrEnum

from deputize.core.frozen import frozen
from deputize.core.servers import Definition


class FlagCode(StrEnum):
    HIDDEN_TEXT = "hidden_text"
    MIXED_SCRIPT = "mixed_script"
    LOOK_ALIKE = "look_alike"
    SHADOWING = "shadowing"
    INSTRUCTION = "instruction"
    AMBIGUOUS = "ambiguous"


@frozen
class Flag:
    """One finding: `where` is a JSON pointer into what was declared, `excerpt` the place itself with everything hidden
    made visible, `sentence` what is the matter with it.
    """

    code: FlagCode
    where: str
    excerpt: str
    sentence: str


@frozen
class Known:
    """A tool that callers of the tenant know already, under the name its own server (or namespace) gives it."""

    server: str
    name: str


def flags_of(definition: Definition, *, server: str, known: Collection[Known] = ()) -> tuple[Flag, ...]:
    """What there is to look at in one tool of `server`, beside everything `known`, its own tools included."""
    raise NotImplementedError


def flags_of_instructions(text: str, *, server: str, known: Collection[Known] = ()) -> tuple[Flag, ...]:
    """The same for what a server says about how to use it as a whole."""
    raise NotImplementedError
