"""`@tool`: a typed Python function, sync or async, becomes a contract. The function stays what it was.

    @tool(effects="read")
    async def greet(name: Annotated[str, Field(description="Who to greet", examples=["Ana"])]) -> str:
        \"\"\"Say hello to somebody.\"\"\"
        return f"Hello, {name}!"

In `tools/hello.py` that is `hello.greet` 0.1.0. Run by `execute/drivers/python.py`; this code is the
operator's own and runs in the gateway's process.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from pydantic import ValidationError

from deputize.catalog.importers.calling import checker, previewer, runner
from deputize.catalog.importers.declaration import (
    WrongDeclaration,
    default_idempotency,
    idempotency_fields,
    reasons_from,
    resource_fields,
    sentences,
    timeout_fields,
)
from deputize.catalog.importers.docstrings import Docstring, read_docstring
from deputize.catalog.importers.examples import example_call, spread_examples
from deputize.catalog.importers.files import PRIVATE, forget, import_file, matching
from deputize.catalog.importers.signatures import Signature, read_signature
from deputize.core import contract as words
from deputize.core.definition import PythonTool

Function = TypeVar("Function", bound=Callable[..., Any])

ATTRIBUTE = "__deputize_tool__"
_AUTH = ("scopes", "permissions", "credential", "secret", "audience", "readonly_secret")
_PREVIEW = "preview_"


class Declared(TypedDict, total=False):
    """What else an author may say; `deputize.core.contract` tells what each means.

    `namespace` is the file's name unless given, `version` 0.1.0. `resources` may be short, as in
    `"update crm.users/{id}"`; `timeout` is a class or seconds; `idempotency` says what the system behind the
    tool makes of the same key twice. `credential` comes to the function as `context.credential`; a preview gets what
    `readonly_secret` names instead. `preview_fresh_seconds` says how long a preview is believed, and `preview_volatile`
    what of it may differ without meaning anything, as in `"/changes/*/before/seen_at"`.
    """

    namespace: str
    name: str
    version: str
    title: str
    description: str
    kind: words.ToolKind | str
    scopes: Sequence[str]
    permissions: Sequence[str]
    credential: Literal["none", "delegated", "vault"]
    secret: str
    audience: str
    readonly_secret: str
    resources: Sequence[words.SideEffect | Mapping[str, Any] | str]
    undo: str
    status: str
    preview_fresh_seconds: int
    preview_volatile: Sequence[str]
    timeout: words.Timeout | Mapping[str, Any] | str | float
    idempotency: words.Idempotency | Mapping[str, Any] | str
    predicates: Mapping[str, words.Schema] | Sequence[words.Predicate | Mapping[str, Any]]
    error_schema: words.Schema
    observability: words.Observability | Mapping[str, Any]
    retry: words.RetryPolicy | Mapping[str, Any]
    breaker: words.Breaker | Mapping[str, Any]
    limits: words.ResourceLimits | Mapping[str, Any]
    network: words.NetworkPolicy | Mapping[str, Any]
    checkpoints: words.Checkpoints | Mapping[str, Any]
    external_service: str
    priority: int
    aliases: Sequence[str]
    search_hint: str
    tags: Sequence[str]
    capability_refs: Sequence[str]
    external_mappings: Mapping[str, Any]
    annotations: Mapping[str, Any]
    life: words.Life | Mapping[str, Any]
    changelog: str
    breaking_changes: bool
    provider: str
    documentation_url: str
    source_code_url: str
    license: str
    author: words.Author | Mapping[str, Any]


def tool(
    *,
    effects: Literal["read", "write", "destructive"],
    examples: Sequence[Mapping[str, Any]] = (),
    validate: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    preview: Callable[..., Any] | None = None,
    returns: Any = None,
    **declared: Unpack[Declared],
) -> Callable[[Function], Function]:
    """Declare a tool beside the function that does the work.

    `validate(**arguments)` raises before any effect when the values make no sense, and may name fewer of them
    than there are; `verify(arguments, output)` raises when a result must not be believed; `preview(**arguments)`
    changes nothing and returns a `Preview` of what the tool would do, and may take a `context` too; `returns` names
    the type inside a `Result`. A wrong declaration raises `WrongDeclaration` at once.
    """
    frame = inspect.currentframe()
    scope = dict(frame.f_back.f_locals) if frame is not None and frame.f_back is not None else {}
    said = {
        "effects": effects, "validates": validate is not None, "verifies": verify is not None,
        "preview": preview is not None, **declared,
    }  # fmt: skip

    def declare(function: Function) -> Function:
        where = _where(function)
        signature = read_signature(function, where, scope=scope, returns=returns)
        previews, with_context = previewer(preview, signature, where) if preview else (None, False)
        made = PythonTool(
            contract=_contract(function, where, signature, said, examples),
            run=runner(function, signature),
            is_async=inspect.iscoroutinefunction(function),
            takes_context=signature.context is not None,
            validate=checker(validate, signature, where) if validate else None,
            verify=verify,
            preview=previews,
            previews_with_context=with_context,
        )
        setattr(function, ATTRIBUTE, made)
        return function

    return declare


def _where(function: Any) -> str:
    if not inspect.isfunction(function):
        raise WrongDeclaration(f"@tool stands before {function!r}; put it before a function")
    where = f"{Path(function.__code__.co_filename).name}:{function.__code__.co_firstlineno} {function.__name__}"
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise WrongDeclaration(f"{where}: a tool returns its result at once; return a list instead of yielding")
    return where


def _contract(
    function: Callable[..., Any],
    where: str,
    signature: Signature,
    said: Mapping[str, Any],
    examples: Sequence[Mapping[str, Any]],
) -> words.Contract:
    doc = read_docstring(function.__doc__)
    _describe(signature, doc, where)
    if said.get("credential", "none") != "none" and signature.context is None:
        raise WrongDeclaration(f"{where}: its credential comes with the context; add context: ToolContext")
    _require_able_to_save(function, signature, said, where)
    calls = tuple(dict(example) for example in examples)
    spread_examples(signature.input_schema, calls)
    if not calls:
        made = example_call(signature.input_schema)
        calls = () if made is None else (made,)
    description = said.get("description", doc.description)
    if len(description) < 10:
        raise WrongDeclaration(f"{where}: give it a docstring that says what it does; models choose by it")
    fields = {
        "namespace": Path(inspect.getfile(function)).stem,
        "name": function.__name__,
        "version": "0.1.0",
        "observability": {},
        **_fields(said, where),
        "description": description,
        "input_schema": signature.input_schema,
        "output_schema": signature.output_schema,
        "examples": calls,
        "handler": {"driver": "python", "target": target_of(function)},
    }
    try:
        return words.Contract.model_validate(fields)
    except ValidationError as error:
        raise WrongDeclaration(*sentences(where, reasons_from(error))) from error


def _require_able_to_save(
    function: Callable[..., Any], signature: Signature, said: Mapping[str, Any], where: str
) -> None:
    checkpoints = said.get("checkpoints", {})
    enabled = checkpoints.get("enabled") if isinstance(checkpoints, Mapping) else checkpoints.enabled
    if enabled and (signature.context is None or not inspect.iscoroutinefunction(function)):
        raise WrongDeclaration(f"{where}: it saves with await context.save; make it async and add context: ToolContext")


def _fields(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The author's short forms as the contract spells them."""
    fields = dict(said)
    rules = {key.removeprefix(_PREVIEW): fields.pop(key) for key in said if key.startswith(_PREVIEW)}
    if rules and not said["preview"]:
        raise WrongDeclaration(f"{where}: {_PREVIEW}{min(rules)} is about a preview, and it has none; add preview=")
    if said["preview"]:
        fields["preview_rules"] = rules
    auth = {key: fields.pop(key) for key in _AUTH if key in fields}
    predicates = fields.get("predicates", ())
    if isinstance(predicates, Mapping):
        predicates = [{"name": name, "holds": holds} for name, holds in predicates.items()]
    return {
        **fields,
        "auth": auth,
        "predicates": predicates,
        "resources": [resource_fields(each) for each in fields.get("resources", ())],
        "timeout": timeout_fields(fields.get("timeout", "standard")),
        "idempotency": idempotency_fields(fields.get("idempotency", default_idempotency(fields["effects"]))),
    }


def target_of(function: Callable[..., Any]) -> str:
    """`tools.hello:greet`: the same on every machine that holds the same files."""
    return f"{function.__module__.removeprefix(PRIVATE + '.')}:{function.__qualname__}"


def _describe(signature: Signature, doc: Docstring, where: str) -> None:
    properties = signature.input_schema.get("properties", {})
    for name, text in doc.arguments.items():
        if name in properties:
            properties[name].setdefault("description", text)
        elif name != signature.context:
            raise WrongDeclaration(f"{where}: the docstring explains {name}, which is no argument; take it out")


def collect(module: ModuleType) -> list[PythonTool]:
    """The tools a module defines, in their order; what it imported from elsewhere is somebody else's."""
    found: list[PythonTool] = []
    for value in vars(module).values():
        made = getattr(value, ATTRIBUTE, None) if callable(value) else None
        if isinstance(made, PythonTool) and value.__module__ == module.__name__ and made not in found:
            found.append(made)
    return found


def load_files(globs: Iterable[str], base: Path) -> list[PythonTool]:
    """Import the files anew and return their tools; two files that declare the same version are a mistake."""
    forget()
    base = base.resolve()
    found: dict[tuple[str, str], tuple[PythonTool, Path]] = {}
    for path in matching(globs, base):
        here = path.relative_to(base)
        for made in collect(import_file(path, base)):
            key = (made.contract.full_name, made.contract.version)
            if key in found:
                raise WrongDeclaration(
                    f"{here}: {key[0]} {key[1]} is already declared in {found[key][1]}; "
                    "rename one of them or raise its version"
                )
            found[key] = (made, here)
    return [made for made, _ in found.values()]
