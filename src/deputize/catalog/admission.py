"""Whether a contract may be registered: eight conditions, all of them judged, every reason told at once.

Above is `lifecycle/command.py`, which asks before it registers; nothing here reads the database. Who already
has a name comes in as a function, so that the question can be asked under the registry's own lock.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import date

from deputize.catalog import versions
from deputize.catalog.exposed import KnownFact, mark_faults, no_facts
from deputize.catalog.schemas import HIDDEN_SENSITIVITIES, BadSchema, compile_schema, follow, without_internal
from deputize.catalog.strictness import Reason, explained_reasons, input_reasons, schema_reasons, structure_reasons
from deputize.core.canonical import canonical
from deputize.core.contract import Contract, Effects, TimeoutClass, outward
from deputize.core.errors import NotAdmitted

# Who owns a name or alias already, by full name; None when it is free.
OwnerOf = Callable[[str], str | None]
# What is called today under a name; None when nothing is.
ContractOf = Callable[[str], Contract | None]

LONGEST_OUTWARD = 64
LARGEST_CONTRACT = 262_144
_OUTWARD = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Drivers of functions whose authors can be asked for more than they declare.
_OWN_CODE = frozenset({"python"})
_ARGUMENT = re.compile(r"\{([^{}]*)\}")


def nobody(name: str) -> None:
    """The answer of an empty registry."""


def admit(
    contract: Contract, *, known: OwnerOf = nobody, facts: KnownFact = no_facts, other: ContractOf | None = None
) -> None:
    """Raise `NotAdmitted` with every reason, or return."""
    reasons = list(reasons_against(contract, known=known, facts=facts, other=other))
    if reasons:
        raise refusal(contract.full_name, contract.version, reasons)


def admit_beside(contract: Contract, *, known: OwnerOf, facts: KnownFact, other: ContractOf) -> None:
    """Raise `NotAdmitted` for what may have come to speak against an admitted contract since: what others are called
    and what they declare. Little enough to be asked under a lock.
    """
    reasons = [*_version_registered(contract, known), *_auth_policy_defined(contract, facts)]
    if contract.status is not None:
        reasons += _status_answers(contract.status, other(contract.status))
    if reasons:
        raise refusal(contract.full_name, contract.version, reasons)


def refusal(name: str, version: str, reasons: list[Reason]) -> NotAdmitted:
    first = reasons[0]
    more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return NotAdmitted(
        f"{name} {version} cannot be registered: {first.path} {first.reason}; {first.fix}{more}",
        details={"reasons": [asdict(reason) for reason in reasons]},
    )


def reasons_against(
    contract: Contract, *, known: OwnerOf, facts: KnownFact = no_facts, other: ContractOf | None = None
) -> Iterator[Reason]:
    """`other` is asked about tools this one names; without it, as where no registry is at hand, nothing is."""
    yield from _schemas_valid(contract)
    yield from _version_registered(contract, known)
    yield from _auth_policy_defined(contract, facts)
    yield from _timeout_class_assigned(contract)
    yield from _idempotency_specified(contract)
    if contract.status is not None and other is not None:
        yield from _status_answers(contract.status, other(contract.status))
    yield from _mutation_class_labelled(contract)
    yield from _observability_instrumented(contract)
    yield from _contract_tests_passing(contract)


def _schemas_valid(contract: Contract) -> Iterator[Reason]:
    yield from schema_reasons("input_schema", contract.input_schema)
    yield from schema_reasons("output_schema", contract.output_schema)
    yield from schema_reasons("error_schema", contract.error_schema)
    for place, check in enumerate(contract.predicates):
        yield from schema_reasons(f"predicates/{place}/holds", check.holds)
    if not any(structure_reasons("input_schema", contract.input_schema)):
        yield from input_reasons(contract.input_schema)
        if _is_own_code(contract):
            yield from explained_reasons(contract.input_schema)
    try:
        size = len(canonical(contract.model_dump(mode="json")))
    except (ValueError, RecursionError) as error:
        fix = "use JSON values, nested little, and numbers up to 2^53"
        yield _reason("schemas_valid", "", f"has no canonical form: {error}", fix)
    else:
        if size > LARGEST_CONTRACT:
            yield _reason("schemas_valid", "", f"takes {size} bytes of at most {LARGEST_CONTRACT}", "say less")


def _version_registered(contract: Contract, known: OwnerOf) -> Iterator[Reason]:
    conjunct = "version_registered"
    try:
        versions.parse(contract.version)
    except versions.NotAVersion as error:
        yield _reason(conjunct, "/version", str(error).partition(";")[0], "write it like 1.4.0 or 2.0.0-rc.1")
    names = [("/name", contract.full_name)]
    names += [(f"/aliases/{place}", alias) for place, alias in enumerate(contract.aliases)]
    for path, name in names:
        spelt = outward(name)
        if not _OUTWARD.fullmatch(spelt):
            fix = f"shorten it; model APIs take at most {LONGEST_OUTWARD} characters"
            yield _reason(conjunct, path, f"{spelt} has {len(spelt)} characters", fix)
        owner = known(name)
        if owner is not None and owner != contract.full_name:
            yield _reason(conjunct, path, f"{name} already belongs to another tool", "choose another name")
    if contract.full_name in contract.aliases:
        yield _reason(conjunct, "/aliases", "repeat the tool's own name", "leave it out")
    yield from _dates(contract)


def _dates(contract: Contract) -> Iterator[Reason]:
    life = contract.life
    days: list[date] = []
    for name, text in (("deprecation_date", life.deprecation_date), ("sunset_date", life.sunset_date)):
        if text is not None:
            try:
                days.append(date.fromisoformat(text))
            except ValueError:
                yield _reason("version_registered", f"/life/{name}", "is no date", "write it like 2030-01-31")
    if len(days) == 2 and days[0] > days[1]:
        fix = "deprecate first, then end"
        yield _reason("version_registered", "/life/sunset_date", "comes before the deprecation date", fix)


def _auth_policy_defined(contract: Contract, facts: KnownFact) -> Iterator[Reason]:
    for path, fault, fix in mark_faults(contract, facts):
        yield _reason("auth_policy_defined", path, fault, fix)
    auth = contract.auth
    if contract.effects is not Effects.READ and not (auth.scopes or auth.permissions):
        fix = f'name a scope a caller needs, as in scopes=["{contract.namespace}:write"]'
        yield _reason("auth_policy_defined", "/auth", "lets anybody change things", fix)
    for kind, field, given, example in (
        ("vault", "secret", auth.secret, "crm/api-key"),
        ("delegated", "audience", auth.audience, "https://crm.example"),
    ):
        if auth.credential == kind and given is None:
            reason, fix = f"is missing, and credential is {kind}", f'name it, as in {field}="{example}"'
            yield _reason("auth_policy_defined", f"/auth/{field}", reason, fix)
        elif auth.credential != kind and given is not None:
            fix = f'say credential="{kind}", or leave it out'
            yield _reason("auth_policy_defined", f"/auth/{field}", f"is of no use to credential {auth.credential}", fix)
    if auth.credential in ("link", "client") and contract.handler.driver != "mcp":
        fix = 'say credential="vault" or credential="delegated"'
        yield _reason("auth_policy_defined", "/auth/credential", f"is {auth.credential}, which only servers have", fix)
    if auth.readonly_secret is not None and (auth.credential != "vault" or not contract.preview):
        fix = 'say credential="vault" and bring a preview, or leave it out'
        yield _reason("auth_policy_defined", "/auth/readonly_secret", "is of use only to a preview", fix)
    elif auth.readonly_secret is not None and auth.readonly_secret == auth.secret:
        fix = f'name a secret that can only read, as in readonly_secret="{auth.secret}-readonly"'
        yield _reason("auth_policy_defined", "/auth/readonly_secret", "is what the tool itself acts with", fix)


def _timeout_class_assigned(contract: Contract) -> Iterator[Reason]:
    conjunct, timeout = "timeout_class_assigned", contract.timeout
    limit = timeout.timeout_class.seconds
    if timeout.seconds is not None and timeout.seconds > limit:
        reason = f"{timeout.seconds:g} s is more than {timeout.timeout_class} allows ({limit:g} s)"
        yield _reason(conjunct, "/timeout/seconds", reason, "ask for less, or choose a longer class")
    if timeout.timeout_class is TimeoutClass.ASYNC and timeout.seconds is None and timeout.max_seconds is None:
        fix = "say the most seconds it may take"
        yield _reason(conjunct, "/timeout/seconds", "is missing, and async has no limit of its own", fix)
    if timeout.seconds and timeout.max_seconds and timeout.seconds > timeout.max_seconds:
        yield _reason(conjunct, "/timeout/max_seconds", "is less than seconds", "make it at least as large")


def _idempotency_specified(contract: Contract) -> Iterator[Reason]:
    name = contract.idempotency.key_argument
    if name is not None and name not in _properties(contract):
        path = "/idempotency/key_argument"
        yield _reason("idempotency_specified", path, f"{name!r} is no argument", "name one of the input's properties")


def _status_answers(name: str, status: Contract | None) -> Iterator[Reason]:
    """A status is asked by the gateway itself, with the key of a call and nothing else, and must change nothing."""
    conjunct, path = "idempotency_specified", "/status"
    if status is None:
        yield _reason(conjunct, path, f"{name} is no tool that can be called", "register it first")
        return
    if status.effects is not Effects.READ:
        yield _reason(conjunct, path, f"{name} changes things itself", "name a tool that only reads")
    root = follow(status.input_schema, status.input_schema)
    part = follow(status.input_schema, _properties(status).get("key"))
    if not isinstance(part, dict) or part.get("type", "string") != "string":
        yield _reason(conjunct, path, f"{name} takes no key", "give it one argument `key`, a text")
    if set(root.get("required", ())) - {"key"}:
        yield _reason(conjunct, path, f"{name} wants more than a key", "let `key` be all it requires")


def _mutation_class_labelled(contract: Contract) -> Iterator[Reason]:
    conjunct = "mutation_class_labelled"
    if contract.effects is Effects.READ:
        if contract.resources:
            fix = 'leave resources out, or say effects="write" or "destructive"'
            yield _reason(conjunct, "/resources", "name what a tool that only reads changes", fix)
    elif not contract.resources:
        fix = 'name what it may change, as in {"resource": "crm.users", "op": "update", "scope": "{id}"}'
        yield _reason(conjunct, "/resources", "are missing", fix)
    if contract.effects is Effects.WRITE and contract.undo is None and _is_own_code(contract):
        fix = 'name the tool that takes it back, or say effects="destructive"'
        yield _reason(conjunct, "/undo", "is missing, and a write is something that can be taken back", fix)
    yield from _previewed(contract)
    properties = _properties(contract)
    for place, effect in enumerate(contract.resources):
        path = f"/resources/{place}/scope"
        for name in _ARGUMENT.findall(effect.scope):
            part = follow(contract.input_schema, properties.get(name))
            if not isinstance(part, dict):
                yield _reason(conjunct, path, f"{{{name}}} is no argument", "name one of the input's properties")
            elif part.get("x-sensitivity") in HIDDEN_SENSITIVITIES:
                fix = "use another argument, or *; scopes are written into the audit log"
                yield _reason(conjunct, path, f"{{{name}}} is marked {part['x-sensitivity']}", fix)


def _previewed(contract: Contract) -> Iterator[Reason]:
    """What nothing takes back says beforehand what it would do; of code that is not ours, that cannot be asked."""
    conjunct = "mutation_class_labelled"
    irreversible = contract.effects is Effects.DESTRUCTIVE and contract.undo is None
    if irreversible and _is_own_code(contract) and not contract.preview:
        fix = "add preview=, a function that says what it would change (in a manifest: handler.preview), or undo"
        yield _reason(conjunct, "/preview", "is missing, and nothing takes back what this tool does", fix)
    if contract.handler.preview is not None and not contract.preview:
        yield _reason(conjunct, "/handler/preview", "is not what preview says", "say preview: true, or leave it out")
    if contract.preview_rules is not None and not contract.preview:
        fix = "say preview: true, and have its function bring one; or leave the rules out"
        yield _reason(conjunct, "/preview_rules", "are about a preview, and there is none", fix)


def _observability_instrumented(contract: Contract) -> Iterator[Reason]:
    seen = contract.observability
    for name, on in (("trace", seen.trace), ("metrics", seen.metrics), ("audit", seen.audit)):
        if on is not True:
            yield _reason("observability_instrumented", f"/observability/{name}", "is off", "leave it on")


def _contract_tests_passing(contract: Contract) -> Iterator[Reason]:
    conjunct = "contract_tests_passing"
    if not contract.examples and _is_own_code(contract):
        yield _reason(conjunct, "/examples", "are missing", "give the arguments of one call that works")
    try:
        validator = compile_schema(without_internal(contract.input_schema))
    except BadSchema:
        return  # already told as a schema's fault
    for place, example in enumerate(contract.examples):
        wrong = next(iter(validator.iter_errors(example)), None)
        if wrong is not None:
            reason = f"does not fit the input schema: {wrong.message}"
            yield _reason(conjunct, f"/examples/{place}", reason, "mend the example or the schema")


def _is_own_code(contract: Contract) -> bool:
    """Whether its author can be asked to explain more, and to bring what takes an effect back. Of a tool that somebody
    else serves, what is enforced on callers is owed all the same, and what it does is the operator's word.
    """
    return contract.handler.driver in _OWN_CODE


def _properties(contract: Contract) -> dict[str, object]:
    root = follow(contract.input_schema, contract.input_schema)
    properties = root.get("properties", {})
    return properties if isinstance(properties, dict) else {}


def _reason(conjunct: str, path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct=conjunct, path=path, reason=reason, fix=fix)
