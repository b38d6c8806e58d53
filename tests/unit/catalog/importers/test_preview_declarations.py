"""Test `@tool(preview=...)`: valid declarations, their contracts, and the errors of wrong ones."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.python import ATTRIBUTE, tool
from deputize.catalog.registration_rules import admit_contract
from deputize.core.contract.contract import PreviewRules
from deputize.core.contract.preview import Preview
from deputize.core.contract.tools import PythonTool, ToolContext

pytestmark = pytest.mark.requirement("GOV-4")

Name = Annotated[str, Field(description="Who to greet", examples=["Ana"])]


def get_tool(function: Any) -> PythonTool:
    found = getattr(function, ATTRIBUTE)
    assert isinstance(found, PythonTool)
    return found


def declaration_error(declare: Any) -> str:
    with pytest.raises(WrongDeclaration) as refused:
        declare()
    assert len(refused.value.sentences) == 1
    return refused.value.sentences[0].partition(" ")[2]


def test_a_preview_belongs_to_the_contract_with_what_is_to_be_made_of_it() -> None:
    def would_close(id: int, context: ToolContext) -> Preview:
        return Preview(impact={"id": id, "user": context.user})

    @tool(
        effects="destructive", namespace="crm", resources=["delete crm.users/{id}"], scopes=["crm:write"],
        preview=would_close, preview_fresh_seconds=60, preview_volatile=["/impact/user"],
    )  # fmt: skip
    def close(id: Annotated[int, Field(description="Which user", examples=[7])], why: Name = "gone") -> str:
        """Close an account for good."""
        return why

    closing = get_tool(close)
    admit_contract(closing.contract)
    assert closing.contract.preview
    assert closing.contract.preview_rules == PreviewRules(fresh_seconds=60, volatile=("/impact/user",))
    assert closing.previews_with_context
    assert closing.preview is not None
    context = ToolContext(
        call_id="c", tenant="t", user="ana", agent="", session=None, key="", attempt=1, seconds_left=1.0,
        traceparent=None,
    )  # fmt: skip
    # JSON may write 7 as 7.0; the preview gets the converted value, as the function does.
    assert repr(closing.preview(id=7.0, why="x", context=context).impact) == "{'id': 7, 'user': 'ana'}"


def test_an_invalid_preview_is_rejected_at_declaration() -> None:
    def unmatched_preview(number: int) -> Preview:
        return Preview()

    def generator_preview(what: str) -> Any:
        yield Preview()

    def declare_tool(**options: Any) -> str:
        def declare() -> None:
            @tool(effects="read", **options)
            def find(what: str) -> str:
                """Find something."""
                return what

        return declaration_error(declare)

    assert declare_tool(preview=unmatched_preview) == (
        "find: preview has a parameter number, which is not an argument of the tool; rename or remove it"
    )
    assert declare_tool(preview=generator_preview) == (
        "find: preview is a generator; return one Preview instead of yielding"
    )
    assert declare_tool(preview=True) == "find: preview is True; pass a function that returns a Preview"
    assert declare_tool(preview_fresh_seconds=5) == (
        "find: preview_fresh_seconds is set, but the tool has no preview; add preview="
    )
    assert declare_tool(preview=lambda what: Preview(), preview_volatile=["/changes/*/op"]).endswith(
        "point at a value inside impact or guards, or at /changes/*/before, after or count"
    )
