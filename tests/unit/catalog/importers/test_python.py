"""Test `@tool`: valid declarations, their contracts, and the errors of wrong ones."""

import asyncio
import datetime
import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field
from typing_extensions import TypedDict

from deputize.catalog.importers.annotations import Internal, Sensitive, Wrap
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.python import ATTRIBUTE, tool
from deputize.catalog.registration_rules import admit_contract
from deputize.core.contract.contract import Contract, Effects, TimeoutClass, UpstreamIdempotency
from deputize.core.contract.preview import Preview
from deputize.core.contract.tools import PythonTool, ToolContext
from deputize.core.errors import SemanticViolation
from deputize.core.outcome import Result

Name = Annotated[str, Field(description="Who to greet", examples=["Ana"])]


class Greeting(BaseModel):
    text: str


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """A position."""

    x: Annotated[int, Field(description="Across", examples=[1])]
    y: Annotated[int, Field(description="Up")] = 0


class Box(TypedDict):
    width: Annotated[int, Field(description="How wide", examples=[3])]


def get_tool(function: Any) -> PythonTool:
    found = getattr(function, ATTRIBUTE)
    assert isinstance(found, PythonTool)
    return found


CONTEXT = ToolContext(
    call_id="c",
    tenant="dev",
    user="ana",
    agent="",
    session=None,
    key="k",
    attempt=1,
    seconds_left=1.0,
    traceparent=None,
)


@pytest.mark.requirement("CON-1")
def test_a_short_declaration_is_a_whole_contract() -> None:
    @tool(effects="read", namespace="hello")
    async def greet(name: Name) -> Greeting:
        """Say hello to a person."""
        return Greeting(text=f"Hello, {name}!")

    contract = get_tool(greet).contract
    admit_contract(contract)
    assert (contract.full_name, contract.version, contract.effects) == ("hello.greet", "0.1.0", Effects.READ)
    assert contract.description == "Say hello to a person."
    assert contract.input_schema == {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "Who to greet", "examples": ["Ana"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    assert contract.output_schema == {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }
    assert contract.examples == ({"name": "Ana"},)
    assert contract.timeout.timeout_class is TimeoutClass.STANDARD
    assert contract.idempotency.upstream is UpstreamIdempotency.IDEMPOTENT
    assert asyncio.run(greet("Bo")) == Greeting(text="Hello, Bo!")
    assert asyncio.run(get_tool(greet).run(name="Bo")) == {"text": "Hello, Bo!"}


arguments_seen: dict[str, Any] = {}


@tool(effects="read", examples=[{"where": {"x": 1}, "when": "2030-01-31T09:00:00Z", "box": {"width": 3}}])
def paint(
    where: Point,
    when: datetime.datetime,
    box: Box,
    ctx: ToolContext,
    layer: int = 1,
    color: Color = Color.RED,
    mode: Literal["fast", "slow"] = "fast",
    note: str | None = None,
    extra: dict[str, Any] = {},  # noqa: B006 -- what authors write
) -> list[Point]:
    """Paint a point somewhere.

    It stays there.

    Args:
        when: The moment it counts from,
            in UTC.
        box: The room it takes.
        layer (int): Which layer.
        color: Its colour.
        mode: How carefully.
        note: Anything to remember.
        extra: Whatever else.

    Returns:
        The points painted.
    """
    arguments_seen.update(where=where, when=when, color=color, ctx=ctx, layer=layer, box=box)
    return [where]


@pytest.mark.requirement("CON-4")
def test_types_become_strict_schemas_and_json_becomes_types() -> None:
    contract = get_tool(paint).contract
    admit_contract(contract)
    properties = contract.input_schema["properties"]
    assert contract.description == "Paint a point somewhere.\n\nIt stays there."
    assert "ctx" not in properties
    assert properties["when"]["description"] == "The moment it counts from, in UTC."
    assert properties["when"]["examples"] == ["2030-01-31T09:00:00Z"]
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert properties["extra"]["x-open"] is True
    assert contract.input_schema["$defs"]["Point"]["additionalProperties"] is False
    assert contract.input_schema["$defs"]["Box"]["additionalProperties"] is False
    assert "title" not in str(contract.input_schema)

    call = {"where": {"x": 1}, "when": "2030-01-31T09:00:00Z", "box": {"width": 3}, "layer": 2.0, "color": "blue"}
    assert get_tool(paint).run(**call, context=CONTEXT) == [{"x": 1, "y": 0}]
    assert arguments_seen["where"] == Point(x=1, y=0)
    assert arguments_seen["when"].year == 2030
    assert arguments_seen["color"] is Color.BLUE
    assert arguments_seen["ctx"] is CONTEXT
    assert type(arguments_seen["layer"]) is int


def test_a_function_of_plain_json_is_called_directly() -> None:
    @tool(effects="read", examples=[{"words": ["a"]}])
    def join(words: Annotated[list[str], Field(description="What to join")], sign: str = "-") -> str:
        """Join words with a sign.

        Args:
            sign: What goes between.
        """
        return sign.join(words)

    assert get_tool(join).run is join


@pytest.mark.requirement("CON-2")
def test_everything_a_contract_may_say_can_be_said() -> None:
    @tool(
        effects="write", namespace="crm", name="set_plan", version="2.1.0", title="Set a plan", scopes=["crm:write"],
        permissions=["api:crm"], credential="vault", secret="crm/api-key",
        resources=["update crm.users/{id}", "create crm.log"], undo="crm.restore_plan",
        status="crm.plan_status", preview=lambda id: Preview(), preview_fresh_seconds=60,
        preview_volatile=["/impact/seen_at"], readonly_secret="crm/api-key-readonly", timeout=30,
        idempotency="deduplicates",
        predicates={"says_ok": {"properties": {"output": {"const": "ok"}}}}, tags=["billing"], aliases=["crm.plan"],
        search_hint="change subscription", retry={"max_attempts": 2}, breaker={"failure_threshold": 3},
        limits={"memory": "1Gi"}, network={"allowed_domains": ["crm.example.org"]}, external_service="crm",
        service_limits={"max_concurrent": 5},
        checkpoints={"enabled": True}, life={"sunset_date": "2031-01-01"}, priority=7, changelog="Faster.",
        license="MIT", author={"name": "Ana"}, provider="acme", external_mappings={"a": 1}, annotations={"b": 2},
        behaviours=["idempotent", "reversible"], requires_user_interaction=True, open_world=False,
        compensation={"compensation_class": "full", "tool": "crm.restore_plan", "bind": {"id": "/arguments/id"}},
        recipient_argument="id", labels={"adds": ["private"]}, sandbox={"tier": 2}, concurrency_safe=True,
        interrupt="block", max_inline=1000, objectives={"p99_seconds": 2}, alerts={"error_rate": 0.1},
        authority_rank=7, native_ids={"openapi": {"method": "PATCH", "path": "/users/{id}"}},
        read_state=lambda id: {"plan": id}, verify=lambda arguments, output: None,
        rollback=lambda arguments, output: None,
    )  # fmt: skip
    async def set_plan(id: Annotated[int, Field(description="Which user", examples=[7])], context: ToolContext) -> str:
        """Change what a user pays for."""
        return "ok"

    contract = get_tool(set_plan).contract
    admit_contract(contract)
    assert [(each.op, each.resource, each.scope) for each in contract.resources] == [
        ("update", "crm.users", "{id}"),
        ("create", "crm.log", "*"),
    ]
    assert contract.timeout.timeout_class is TimeoutClass.LONG_RUNNING
    assert contract.timeout.effective_seconds == 30
    assert contract.verifies
    assert (contract.auth.credential, contract.auth.secret) == ("vault", "crm/api-key")
    defaults = {
        name for name in Contract.model_fields if getattr(contract, name) == Contract.model_fields[name].default
    }
    assert defaults <= {
        "kind", "breaking_changes", "capability_refs", "documentation_url", "source_code_url", "validates",
        "freshness", "fallback", "fallback_task",  # only of reads
        "flow",  # of tools without a function
    }  # fmt: skip


@pytest.mark.requirement("CON-11")
def test_marks_beside_types_reach_the_schema() -> None:
    @tool(effects="read", examples=[{"mail": "ana@example.org", "ids": [1]}])
    def find(
        mail: Annotated[str, Sensitive("pii"), Field(description="Whose", pattern="@")],
        ids: Annotated[list[int], Wrap(), Field(description="Which")],
        trace: Annotated[str, Internal(), Field(description="For us")] = "",
    ) -> str:
        """Find a person by mail."""
        return mail

    properties = get_tool(find).contract.input_schema["properties"]
    assert properties["mail"]["x-sensitivity"] == "pii"
    assert properties["ids"]["x-coerce"] == "wrap"
    assert properties["trace"]["x-internal"] is True
    admit_contract(get_tool(find).contract)


def test_the_tools_own_validation_gets_what_it_names_in_its_own_types() -> None:
    seen: list[Any] = []

    async def in_the_future(when: datetime.date) -> None:
        seen.append(when)

    @tool(effects="read", validate=in_the_future, examples=[{"when": "2030-01-31", "what": "party"}])
    def plan(when: datetime.date, what: str) -> str:
        """Plan something.

        Args:
            when: The day.
            what: The thing.
        """
        return what

    check = get_tool(plan).validate
    assert check is not None
    asyncio.run(check(when="2030-01-31", what="party"))
    assert seen == [datetime.date(2030, 1, 31)]
    assert get_tool(plan).contract.validates


def test_a_value_only_its_type_can_refuse_is_refused_before_anything_is_done() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("an odd number")
        return value

    @tool(effects="read")
    def halve(value: Annotated[int, AfterValidator(even), Field(description="An even one", examples=[4])]) -> int:
        """Halve an even number."""
        return value // 2

    assert get_tool(halve).run(value=4) == 2
    with pytest.raises(SemanticViolation, match="/value: Value error, an odd number") as refused:
        get_tool(halve).run(value=3)
    assert refused.value.nothing_happened


def test_a_result_may_say_more_about_its_payload() -> None:
    @tool(effects="read", returns=Greeting)
    def greet(name: Name) -> Result:
        """Say hello and where it comes from."""
        return Result(payload=Greeting(text=name), source="here")

    found = get_tool(greet).run(name="Bo")
    assert found == Result(payload={"text": "Bo"}, source="here")


def declaration_error(declare: Any) -> str:
    with pytest.raises(WrongDeclaration) as refused:
        declare()
    assert len(refused.value.sentences) == 1
    return refused.value.sentences[0].partition(" ")[2]


def test_a_function_that_cannot_be_a_tool_hears_one_sentence_that_says_what_to_do() -> None:
    def declare_untyped() -> None:
        @tool(effects="read")
        def find(what) -> str:  # type: ignore[no-untyped-def]  # the mistake under test
            """Find something."""
            return str(what)

    def declare_open_ended() -> None:
        @tool(effects="read")
        def find(*what: str) -> str:
            """Find something."""
            return ""

    def declare_no_output() -> None:
        @tool(effects="read")
        def find(what: str):  # type: ignore[no-untyped-def]  # the mistake under test
            """Find something."""

    def declare_keyed() -> None:
        @tool(effects="read", credential="delegated", audience="https://crm.example")
        def find(what: str) -> str:
            """Find something."""
            return what

    def declare_saving() -> None:
        @tool(effects="read", checkpoints={"enabled": True})
        def find(what: str, context: ToolContext) -> str:
            """Find something."""
            return what

    assert (
        declaration_error(declare_saving)
        == "find: checkpoints need await context.save; make it async and add a parameter context: ToolContext"
    )
    assert declaration_error(declare_keyed) == (
        "find: the credential is passed in the context; add a parameter context: ToolContext"
    )
    assert declaration_error(declare_untyped) == "find: the argument what has no type; write what: str, or its type"
    assert declaration_error(declare_open_ended) == "find: *what has no schema; name each argument instead"
    assert declaration_error(declare_no_output) == "find: it has no return type; write -> str, or its type"


def test_a_wrong_word_in_a_declaration_hears_what_would_be_right() -> None:
    def declare_misspelt() -> None:
        @tool(effects="reads")  # type: ignore[call-overload, untyped-decorator]  # the mistake under test
        def find(what: str) -> str:
            """Find something."""
            return what

    def declare_misnamed() -> None:
        @tool(effects="read", namespace="My-Tools")
        def find(what: str) -> str:
            """Find something."""
            return what

    def declare_explained() -> None:
        @tool(effects="read")
        def find(what: str) -> str:
            """Find something.

            Args:
                whta: A typo.
            """
            return what

    def declare_unknown() -> None:
        @tool(effects="read", tag=["a"])  # type: ignore[call-overload, untyped-decorator]  # the mistake under test
        def find(what: str) -> str:
            """Find something."""
            return what

    assert (
        declaration_error(declare_misspelt)
        == "find: effects is not a known value; write 'read', 'write' or 'destructive'"
    )
    assert declaration_error(declare_misnamed).endswith(
        "use lower-case words joined by single underscores, as in crm or order_desk"
    )
    assert (
        declaration_error(declare_explained)
        == "find: the docstring describes whta, which is not an argument; remove it from the docstring"
    )
    assert declaration_error(declare_unknown) == "find: tag is not a parameter of @tool; did you mean tags?"


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (
            {"resources": ["books"]},
            'resources[0] "books" does not say what is done to what; write create, update or delete and a resource, '
            'as in resources=["update crm.users/{id}"]',
        ),
        ({"resources": "create books"}, 'resources must be a list; write resources=["create books"]'),
        (
            {"timeout": -1},
            'timeout must be greater than 0; write it as in timeout=30, in seconds, or timeout="standard"',
        ),
        ({"scopes": "books:write"}, 'scopes must be a list; write scopes=["books:write"]'),
        (
            {"scopes": ["a b"]},
            "scopes[0] has an invalid format; use printable characters without spaces, as in crm:read",
        ),
        ({"retry": {"attempts": 3}}, 'retry["attempts"] is not known; remove it'),
        ({"checkpoints": True}, 'checkpoints has the wrong type; write it as in checkpoints={"enabled": True}'),
        ({"description": 5}, "description must be a string"),
        (
            {"examples": {"id": 7}},
            "examples must be a list of calls, each a dict of arguments by name; write one that works, as in "
            'examples=[{"id": 7}]',
        ),
    ],
)
def test_a_wrong_value_is_explained_by_its_parameter_and_in_python(mistake: dict[str, Any], sentence: str) -> None:
    def find(what: str) -> str:
        """Find something."""
        return what

    declaration = {"effects": "destructive", "scopes": ["books:write"], "resources": ["create books"], **mistake}
    assert declaration_error(lambda: tool(**declaration)(find)) == f"find: {sentence}"
