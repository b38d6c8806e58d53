"""Declare the command that a call of a tool becomes: a program, where each argument goes, and what it sees and leaves.

There is no shell: an argument of the tool is one argument of the program, or the end of one.
"""

import re
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from deputize.core.contract.http_request import ArgumentName
from deputize.core.contract.parts import SparsePart

# `{name}`, wherever it stands; an argument of the program ends with the only one that it has.
PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,119})\}")
# The folder that a program leaves files in, unless its contract names another.
DEFAULT_FILES_FOLDER: Final = "/out"
DEFAULT_OUTPUT_BYTES: Final = 262_144
HostPath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=1_000)]
ExitMeaning = Literal["ok", "failed", "precondition", "conflict"]
_Argument = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=8_000)]
_VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
_ExitCode = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]?|1[01][0-9]|12[0-8])$")]


class CommandFolder(SparsePart):
    """A folder or file of the host that the program sees at its own path, to read unless `write` is set."""

    path: HostPath
    write: bool | None = None


class CommandFiles(SparsePart):
    """The folder that the program leaves files in, which are part of the result; most files, and most bytes of all."""

    folder: HostPath = DEFAULT_FILES_FOLDER
    count: Annotated[int, Field(ge=1, le=200)] = 20
    bytes: Annotated[int, Field(ge=1, le=4_194_304)] = 1_048_576


class Command(SparsePart):
    """A program and its arguments. `{name}` at the end of one stands for an argument of the tool; one that is not given
    leaves its argument of the program out. The file of the program must have the digest `sha256`. `stdin` is the
    argument that it reads as its input. Its environment is `environment` and a few fixed variables. `exit_codes` say
    what a code means; 0 is `ok` and any other `failed`.
    """

    program: HostPath
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    arguments: Annotated[tuple[_Argument, ...], Field(max_length=200)] = ()
    stdin: ArgumentName | None = None
    environment: Annotated[dict[_VariableName, _Argument], Field(max_length=50)] | None = None
    folders: Annotated[tuple[CommandFolder, ...], Field(max_length=50)] | None = None
    working_folder: HostPath | None = None
    # How what it writes is read.
    output: Literal["json"] | None = None
    output_bytes: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    exit_codes: Annotated[dict[_ExitCode, ExitMeaning], Field(max_length=129)] | None = None
    files: CommandFiles | None = None

    @model_validator(mode="after")
    def _check_arguments(self) -> "Command":
        for each in self.arguments:
            split_argument(each)
        return self

    @property
    def changes_folders(self) -> bool:
        """True if the program may change files of the host."""
        return any(each.write for each in self.folders or ())


def split_argument(argument: str) -> tuple[str, str | None]:
    """Split an argument of the program into its fixed beginning and the placeholder at its end, None without one.

    A value must never become an option: after a fixed beginning it cannot, unless that is an option itself, which is
    why one needs `=`. A value that stands alone is checked when the command is built. Raise ValueError.
    """
    found = list(PLACEHOLDER.finditer(argument))
    if not found:
        return argument, None
    prefix = argument[: found[0].start()]
    if len(found) > 1 or found[0].end() != len(argument):
        raise ValueError(f"{argument[:80]} has more than one placeholder, or something after it: split it")
    if prefix.startswith("-") and not prefix.endswith("="):
        raise ValueError(f"{argument[:80]} could become another option: write an option with =, as in --name={{value}}")
    return prefix, found[0][1]
