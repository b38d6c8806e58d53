"""Define which tools return the same fact, and which one is believed: `[[consistency]]` and its sources."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from deputize.core.json_pointer import parse_pointer
from deputize.core.settings.base import SettingsSection

Resolution = Literal["authority", "freshness", "majority", "human"]


def _check_entity(text: str) -> str:
    if parse_pointer(text)[0] not in ("input", "output"):
        raise ValueError("has to begin with /input/ or /output/")
    return text


def _check_value(text: str) -> str:
    if parse_pointer(text)[0] != "output":
        raise ValueError("has to begin with /output, because it is what the tool says")
    return text


class ConsistencySource(SettingsSection):
    """One tool that tells the fact."""

    tool: str = Field(
        max_length=129,
        pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$",
        description="Full name of a tool that reads, as `shop.get_order`.",
    )
    entity: Annotated[str, AfterValidator(_check_entity)] = Field(
        description='Which thing it is about: a JSON Pointer into `{"input": …, "output": …}`, to a text or a number.'
    )
    value: Annotated[str, AfterValidator(_check_value)] = Field(
        description="What the tool says about it: a JSON Pointer into the same."
    )


class ConsistencyRule(SettingsSection):
    """A fact that several tools tell. What one says is compared with what the others said to the same user."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,47}$",
        description="Name of the rule in warnings and problems: small letters, digits, `-` and `_`, a letter first.",
    )
    resolution: Resolution = Field(
        description="Which source is believed: the highest `authority_rank`, the newest, the largest group, or none "
        "until a person has corrected one."
    )
    within_seconds: float = Field(600.0, ge=1, le=86_400, description="How long a value counts.")
    tolerance: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="How far two numbers may be apart and still agree."
    )
    ignore_case: bool = Field(False, description="Whether texts agree that differ only in upper and lower case.")
    tenants: str = Field("*", description="Tenants it applies to, as a glob.")
    sources: tuple[ConsistencySource, ...] = Field(min_length=2, max_length=10, description="The tools that tell it.")

    @field_validator("sources")
    @classmethod
    def _check_distinct_tools(cls, sources: tuple[ConsistencySource, ...]) -> tuple[ConsistencySource, ...]:
        tools = [each.tool for each in sources]
        duplicate = next((tool for tool in tools if tools.count(tool) > 1), None)
        if duplicate is not None:
            raise ValueError(f"two sources name the tool {duplicate}: name each tool once")
        return sources
