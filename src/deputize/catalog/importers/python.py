"""Declare tools as typed Python functions, sync or async, with `@tool`. The function itself stays unchanged.

    @tool(effects="read", examples=[{"name": "Ana"}])
    async def greet(name: Annotated[str, Field(description="Who to greet", examples=["Ana"])]) -> str:
        \"\"\"Say hello to a person.\"\"\"
        return f"Hello, {name}!"

In `tools/hello.py` this is the tool `hello.greet` 0.1.0. A bare `@tool` declares a draft. `execute/drivers/python.py`
runs the function in the gateway's process; it is the operator's own code.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from pydantic import ValidationError

from deputize.catalog.importers.declaration import (
    DECLARATION_FAULTS,
    WrongDeclaration,
    choose_idempotency,
    expand_idempotency,
    expand_resource,
    expand_timeout,
    explain_validation_error,
    format_python_reasons,
)
from deputize.catalog.importers.docstrings import Docstring, parse_docstring
from deputize.catalog.importers.examples import build_example_call, spread_examples
from deputize.catalog.importers.function_adapter import (
    adapt_previewer,
    adapt_state_reader,
    adapt_tool,
    adapt_validator,
    require_rollback,
)
from deputize.catalog.importers.signatures import Signature, read_signature
from deputize.catalog.importers.tool_files import MODULE_PREFIX
from deputize.core.contract import contract as contract_types
from deputize.core.contract.publication import DRAFT_VERSION, NO_DESCRIPTION, has_placeholder
from deputize.core.contract.tools import FlowTool, ProjectTool, PythonTool

Function = TypeVar("Function", bound=Callable[..., Any])

ATTRIBUTE = "__deputize_tool__"
# In a module: every function of it that was declared, also those whose name was given to another one since.
_DECLARED_FUNCTIONS = "__deputize_functions__"
_AUTH_FIELDS = ("scopes", "permissions", "credential", "secret", "audience", "readonly_secret")
_PREVIEW_PREFIX = "preview_"
_MIN_DESCRIPTION = 10
# What an approver reads of a draft.
_UNDECLARED_RESOURCE = "delete undeclared/*"


class ToolOptions(TypedDict, total=False):
    """The optional fields of a declaration; `deputize.core.contract.contract` documents each of them.

    `namespace` defaults to the file's name, `version` to 0.1.0. `resources` may be short, as in
    `"update crm.users/{id}"`; `timeout` is a class or seconds; `idempotency` is what the upstream system does with a
    repeated key. The function gets its credential as `context.credential`; a preview gets the one that
    `readonly_secret` names. `preview_fresh_seconds` is how long a preview stays valid, and `preview_volatile` lists
    values that may differ between two previews, as in `"/changes/*/before/seen_at"`.
    """

    namespace: str
    name: str
    version: str
    title: str
    description: str
    kind: contract_types.ToolKind | str
    scopes: Sequence[str]
    permissions: Sequence[str]
    credential: Literal["none", "delegated", "vault"]
    secret: str
    audience: str
    readonly_secret: str
    resources: Sequence[contract_types.SideEffect | Mapping[str, Any] | str]
    undo: str
    status: str
    preview_fresh_seconds: int
    preview_volatile: Sequence[str]
    timeout: contract_types.Timeout | Mapping[str, Any] | str | float
    idempotency: contract_types.Idempotency | Mapping[str, Any] | str
    predicates: Mapping[str, contract_types.Schema | str] | Sequence[contract_types.Predicate | Mapping[str, Any]]
    error_schema: contract_types.Schema
    observability: contract_types.Observability | Mapping[str, Any]
    retry: contract_types.RetryPolicy | Mapping[str, Any]
    breaker: contract_types.CircuitBreaker | Mapping[str, Any]
    limits: contract_types.ResourceLimits | Mapping[str, Any]
    network: contract_types.NetworkPolicy | Mapping[str, Any]
    checkpoints: contract_types.Checkpoints | Mapping[str, Any]
    behaviours: Sequence[contract_types.Behaviour]
    compensation: contract_types.Compensation | Mapping[str, Any]
    requires_user_interaction: bool
    open_world: bool
    recipient_argument: str
    labels: contract_types.Labels | Mapping[str, Any]
    sandbox: contract_types.Sandbox | Mapping[str, Any]
    freshness: contract_types.Freshness | Mapping[str, Any]
    fallback: Sequence[str]
    fallback_task: str
    concurrency_safe: bool
    interrupt: Literal["cancel", "block"]
    max_inline: int
    objectives: contract_types.Objectives | Mapping[str, Any]
    alerts: contract_types.Alerts | Mapping[str, Any]
    authority_rank: int
    external_service: str
    service_limits: contract_types.ServiceLimits | Mapping[str, Any]
    priority: int
    aliases: Sequence[str]
    search_hint: str
    tags: Sequence[str]
    capability_refs: Sequence[str]
    native_ids: contract_types.NativeIds | Mapping[str, Any]
    external_mappings: Mapping[str, Any]
    annotations: Mapping[str, Any]
    life: contract_types.EndOfLife | Mapping[str, Any]
    changelog: str
    breaking_changes: bool
    provider: str
    documentation_url: str
    source_code_url: str
    license: str
    author: contract_types.Author | Mapping[str, Any]


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    effects: Literal["read", "write", "destructive"] | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    validate: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    preview: Callable[..., Any] | None = None,
    read_state: Callable[..., Any] | None = None,
    rollback: Callable[..., Any] | None = None,
    returns: Any = None,
    **options: Unpack[ToolOptions],
) -> Callable[[Function], Function]: ...


def tool(
    function: Function | None = None,
    /,
    *,
    effects: Literal["read", "write", "destructive"] | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    validate: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    preview: Callable[..., Any] | None = None,
    read_state: Callable[..., Any] | None = None,
    rollback: Callable[..., Any] | None = None,
    returns: Any = None,
    **options: Unpack[ToolOptions],
) -> Function | Callable[[Function], Function]:
    """Declare the decorated function as a tool; without `effects` as a draft, which only `deputize dev` runs.

    `validate(**arguments)` raises before any effect if the values are wrong, and may take only some of the arguments;
    `verify(arguments, output)` raises if a result must be rejected; `preview(**arguments)` changes nothing, returns a
    `Preview` of what the tool would do, and may also take a `context`; `read_state(**arguments)` returns, as JSON, the
    state that the tool could change, and is called before and after it; `rollback(arguments, output)` takes back what a
    call did whose result was rejected; `returns` names the type in a `Result`. Mistakes raise `WrongDeclaration`.
    """
    frame = inspect.currentframe()
    scope = dict(frame.f_back.f_locals) if frame is not None and frame.f_back is not None else {}
    declaration = {
        "effects": effects, "validates": validate is not None, "verifies": verify is not None,
        "preview": preview is not None, "reads_state": read_state is not None,
        "rolls_back": rollback is not None, **options,
    }  # fmt: skip

    def declare(function: Function) -> Function:
        faults = getattr(function, "__globals__", {}).get(DECLARATION_FAULTS)
        if faults is None:
            return declare_tool(function)
        # While a file is loaded, the faults of all its tools are collected and told at once.
        try:
            return declare_tool(function)
        except WrongDeclaration as error:
            faults.extend(error.sentences)
            return function

    def declare_tool(function: Function) -> Function:
        where = _locate_function(function)
        signature = read_signature(function, where, scope=scope, returns=returns)
        preview_function, takes_context = adapt_previewer(preview, signature, where) if preview else (None, False)
        python_tool = PythonTool(
            contract=_build_contract(function, where, signature, declaration, examples),
            run=adapt_tool(function, signature),
            is_async=inspect.iscoroutinefunction(function),
            takes_context=signature.context_name is not None,
            validate=adapt_validator(validate, signature, where) if validate else None,
            verify=verify,
            preview=preview_function,
            previews_with_context=takes_context,
            read_state=adapt_state_reader(read_state, signature, where) if read_state else None,
            rollback=require_rollback(rollback, where) if rollback else None,
        )
        setattr(function, ATTRIBUTE, python_tool)
        function.__globals__.setdefault(_DECLARED_FUNCTIONS, []).append(function)
        return function

    return declare if function is None else declare(function)


def _locate_function(function: Any) -> str:
    if not inspect.isfunction(function):
        raise WrongDeclaration(f"@tool decorates {function!r}; use it on a function")
    where = f"{Path(function.__code__.co_filename).name}:{function.__code__.co_firstlineno} {function.__name__}"
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise WrongDeclaration(f"{where}: a tool cannot be a generator; return a list instead of yielding")
    return where


def _build_contract(
    function: Callable[..., Any],
    where: str,
    signature: Signature,
    declaration: Mapping[str, Any],
    examples: Sequence[Mapping[str, Any]],
) -> contract_types.Contract:
    doc = parse_docstring(function.__doc__)
    _add_descriptions(signature, doc, where)
    if declaration.get("credential", "none") != "none" and signature.context_name is None:
        raise WrongDeclaration(
            f"{where}: the credential is passed in the context; add a parameter context: ToolContext"
        )
    _require_checkpoint_support(function, signature, declaration, where)
    calls = tuple(dict(example) for example in _require_calls(examples, where) if not has_placeholder(example))
    spread_examples(signature.input_schema, calls)
    if not calls:
        example_arguments = build_example_call(signature.input_schema)
        calls = () if example_arguments is None else (example_arguments,)
    description = declaration.get("description", doc.description)
    names = {"namespace": Path(inspect.getfile(function)).stem, "name": function.__name__}
    if declaration["effects"] is None:
        declaration = _complete_draft({**names, **declaration}, where)
    fields = {
        **names,
        "version": "0.1.0",
        "observability": {},
        **_expand_fields(declaration, where),
        "description": NO_DESCRIPTION if _is_too_short(description) else description,
        "input_schema": signature.input_schema,
        "output_schema": signature.output_schema,
        "examples": calls,
        "handler": {"driver": "python", "target": format_target(function)},
    }
    try:
        return contract_types.Contract.model_validate(fields)
    except ValidationError as error:
        sentences = format_python_reasons(where, explain_validation_error(error), declaration)
        raise WrongDeclaration(*sentences) from error


def _is_too_short(description: Any) -> bool:
    return isinstance(description, str) and len(description) < _MIN_DESCRIPTION


def _require_calls(examples: Any, where: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(examples, list | tuple) and all(isinstance(each, Mapping) for each in examples):
        return examples
    raise WrongDeclaration(
        f"{where}: examples must be a list of calls, each a dict of arguments by name; write one that works, as in "
        'examples=[{"id": 7}]'
    )


def _complete_draft(declaration: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Declare the strictest of a tool without effects: anything may be lost, and a person approves each call."""
    if "version" in declaration:
        raise WrongDeclaration(
            f'{where}: it has a version, but does not say what it does; add effects="read", "write" or "destructive"'
        )
    return {
        "scopes": [f"draft:{declaration['namespace']}.{declaration['name']}"],
        "resources": [_UNDECLARED_RESOURCE],
        **declaration,
        "effects": "destructive",
        "version": DRAFT_VERSION,
        "requires_user_interaction": True,
    }


def _require_checkpoint_support(
    function: Callable[..., Any], signature: Signature, declaration: Mapping[str, Any], where: str
) -> None:
    checkpoints = declaration.get("checkpoints", {})
    is_mapping = isinstance(checkpoints, Mapping)
    is_enabled = checkpoints.get("enabled") if is_mapping else getattr(checkpoints, "enabled", False)
    if is_enabled and (signature.context_name is None or not inspect.iscoroutinefunction(function)):
        raise WrongDeclaration(
            f"{where}: checkpoints need await context.save; make it async and add a parameter context: ToolContext"
        )


def _expand_fields(declaration: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Expand the declaration's short forms into contract fields."""
    fields = dict(declaration)
    rules = {
        key.removeprefix(_PREVIEW_PREFIX): fields.pop(key) for key in declaration if key.startswith(_PREVIEW_PREFIX)
    }
    if rules and not declaration["preview"]:
        raise WrongDeclaration(
            f"{where}: {_PREVIEW_PREFIX}{min(rules)} is set, but the tool has no preview; add preview="
        )
    if declaration["preview"]:
        fields["preview_rules"] = rules
    auth = {key: fields.pop(key) for key in _AUTH_FIELDS if key in fields}
    predicates = fields.get("predicates", ())
    if isinstance(predicates, Mapping):
        predicates = [
            {"name": name, **({"compare": [rule]} if isinstance(rule, str) else {"holds": rule})}
            for name, rule in predicates.items()
        ]
    resources = fields.get("resources", ())
    if isinstance(resources, list | tuple):
        resources = [expand_resource(each) for each in resources]
    return {
        **fields,
        "auth": auth,
        "predicates": predicates,
        "resources": resources,
        "timeout": expand_timeout(fields.get("timeout", "standard")),
        "idempotency": expand_idempotency(fields.get("idempotency", choose_idempotency(fields["effects"]))),
    }


def format_target(function: Callable[..., Any]) -> str:
    """Format a function as `tools.hello:greet`, which is the same on every machine with the same files."""
    return f"{function.__module__.removeprefix(MODULE_PREFIX + '.')}:{function.__qualname__}"


def _add_descriptions(signature: Signature, doc: Docstring, where: str) -> None:
    properties = signature.input_schema.get("properties", {})
    for name, text in doc.arguments.items():
        if name in properties:
            if not has_placeholder(text):
                properties[name].setdefault("description", text)
        elif name != signature.context_name:
            raise WrongDeclaration(
                f"{where}: the docstring describes {name}, which is not an argument; remove it from the docstring"
            )


def collect_tools(module: ModuleType) -> list[ProjectTool]:
    """Collect the tools and flows that a module defines, in order, without those it imports from other modules.

    Raise `WrongDeclaration` if two of its functions have one name: the first would be lost.
    """
    _require_distinct_names(vars(module).get(_DECLARED_FUNCTIONS, ()))
    tools: list[ProjectTool] = []
    for value in vars(module).values():
        if isinstance(value, FlowTool) and value.module == module.__name__ and value not in tools:
            tools.append(value)
            continue
        candidate = getattr(value, ATTRIBUTE, None) if callable(value) else None
        if isinstance(candidate, PythonTool) and value.__module__ == module.__name__ and candidate not in tools:
            tools.append(candidate)
    return tools


def _require_distinct_names(functions: Sequence[Any]) -> None:
    functions_by_name: dict[str, Any] = {}
    sentences: list[str] = []
    for function in functions:
        if function.__qualname__ != function.__name__:
            continue
        first = functions_by_name.setdefault(function.__name__, function)
        if first is not function:
            sentences.append(
                f"{_locate_function(function)}: line {first.__code__.co_firstlineno} has a tool of this name, which "
                "would be lost; rename one of the functions (name= keeps the name of the tool)"
            )
    if sentences:
        raise WrongDeclaration(*sentences)
