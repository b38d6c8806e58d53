"""`@tool(preview=...)`: what an author says of it, what comes of it, and what a wrong one hears."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from deputize.catalog.admission import admit
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.python import ATTRIBUTE, tool
from deputize.core.contract import PreviewRules
from deputize.core.definition import PythonTool, ToolContext
from deputize.core.preview import Preview

pytestmark = pytest.mark.requirement("GOV-4")

Name = Annotated[str, Field(description="Who to greet", examples=["Ana"])]


def made(function: Any) -> PythonTool:
    found = getattr(function, ATTRIBUTE)
    assert isinstance(found, PythonTool)
    return found


def wrong(declare: Any) -> str:
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

    closing = made(close)
    admit(closing.contract)
    assert closing.contract.preview
    assert closing.contract.preview_rules == PreviewRules(fresh_seconds=60, volatile=("/impact/user",))
    assert closing.previews_with_context
    assert closing.preview is not None
    context = ToolContext(
        call_id="c", tenant="t", user="ana", agent="", session=None, key="", attempt=1, seconds_left=1.0,
        traceparent=None,
    )  # fmt: skip
    # JSON may write 7 as 7.0; the preview gets what the function would.
    assert repr(closing.preview(id=7.0, why="x", context=context).impact) == "{'id': 7, 'user': 'ana'}"


def test_a_preview_that_cannot_work_is_told_at_once() -> None:
    def stranger(number: int) -> Preview:
        return Preview()

    def piecemeal(what: str) -> Any:
        yield Preview()

    def declared(**said: Any) -> str:
        def declare() -> None:
            @tool(effects="read", **said)
            def find(what: str) -> str:
                """Find something."""
                return what

        return wrong(declare)

    assert declared(preview=stranger) == "find: preview asks for number, which is no argument of the tool"
    assert declared(preview=piecemeal) == "find: preview returns one Preview; return it instead of yielding"
    assert declared(preview=True) == "find: preview is a function that returns a Preview, not True"
    assert declared(preview_fresh_seconds=5) == (
        "find: preview_fresh_seconds is about a preview, and it has none; add preview="
    )
    assert declared(preview=lambda what: Preview(), preview_volatile=["/changes/*/op"]).endswith(
        "point at a value inside impact or guards, or at /changes/*/before, after or count"
    )
