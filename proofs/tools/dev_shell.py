"""What an agent with a shell wants done without approval: a tool that erases, and notes in a file that it did."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from deputize import Preview, tool

Label = Annotated[str, Field(description="What to erase", examples=["x"], max_length=120)]


def _preview_erase(label: str) -> Preview:
    return Preview(changes=[{"resource": "things", "op": "delete", "scope": label, "count": 1}])


@tool(
    effects="destructive",
    namespace="dev_shell",
    resources=["delete things/{label}"],
    scopes=["proof:write"],
    tags=["critical"],
    idempotency="cannot",
    preview=_preview_erase,
)
def erase(label: Label) -> str:
    """Erase something for good."""
    with Path("erased.txt").open("a") as file:
        file.write(f"{label}\n")
    return label
