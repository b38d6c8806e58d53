"""Declare how labelled information flows through a tool."""

from typing import Annotated

from pydantic import StringConstraints

from deputize.core.contract.parts import SparsePart

Label = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_:-]*$", max_length=64)]


class Labels(SparsePart):
    """The labels that a tool's arguments may carry, and those that its results get. None: every label, and no label."""

    accepts: tuple[Label, ...] | None = None
    adds: tuple[Label, ...] | None = None
