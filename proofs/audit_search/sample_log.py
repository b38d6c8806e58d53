"""Fill a database with a month of audit entries of two tenants, and keep what was drawn for each of them.

The product's own encoder writes the entries, under the index, and the log of each tenant takes them in as always. The
table of calls gets rows only where the search reads it: for the calls of one agent, some of them by other delegations.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg

from deputize.core.caller import Caller, Epochs
from deputize.core.canonical import compute_commitment
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.core.decision import Decision
from deputize.core.states import State
from deputize.core.subject import AGENT_PREFIX
from deputize.evidence.audit_entries import AuditContext, Passage, encode_entry

TENANTS: Final = ("acme", "beta")
# Whose calls the proof asks for as themselves, by which agent, and who was erased.
PERSON, AGENT, ERASED = "user-1", "agent-0", "user-30"
# A tool that the gateway knows; its calls are seen only with its scope.
SCOPED_TOOL: Final = "orders.place"
_DAYS = 30
_BATCH = 20_000
_DRAIN_SECONDS: Final = 900.0
_USERS, _AGENTS, _TOOLS = 2000, 20, 300
_GRANT_MARK = "\x1e"
_PASSED = Passage(State.PLANNED, State.SELECTED, State.ARGUMENTS_READY, State.RUNNING)
_MAKE_PARTITIONS = """
do $$ declare parent text; part text; day date; begin
    foreach parent in array array['audit_entries', 'calls'] loop
        for n in 0..{days} loop
            day := (now() at time zone 'utc')::date - n;
            part := parent || to_char(day, '_YYYYMMDD');
            continue when to_regclass('deputize.' || part) is not null;
            execute format('create table deputize.%I (like deputize.%I including all)', part, parent);
            execute format('alter table deputize.%I attach partition deputize.%I for values from (%L) to (%L)',
                parent, part, deputize.first_uuid_of_day(day), deputize.first_uuid_of_day(day + 1));
        end loop;
    end loop;
end $$
"""


class Drawn(NamedTuple):
    """What one entry was drawn as: the answer to every question is computed from these, never from the entry."""

    id: UUID
    tenant: str
    kind: str
    user: str | None = None
    agents: tuple[str, ...] = ()
    tool: str | None = None
    resource: str | None = None
    rules: tuple[str, ...] = ()
    outcome: str | None = None
    session: str | None = None
    trace: str = ""
    call: UUID | None = None
    approval: UUID | None = None
    # Made by the agents, but by another delegation than the token of the one who asks.
    is_of_other_grant: bool = False

    @property
    def is_of_agent(self) -> bool:
        return self.user == PERSON and self.agents == (AGENT,)


def draw_entries(count: int, now_ms: int) -> list[Drawn]:
    """Draw a month of entries, oldest first: few people, tools and rules are in many of them, and many in few."""
    draw = random.Random(20261118)
    first_ms = now_ms - (_DAYS - 1) * 86_400_000
    step = (_DAYS - 1) * 86_400_000 / count
    entries: list[Drawn] = []
    begun: dict[str, list[Drawn]] = {tenant: [] for tenant in TENANTS}
    for number in range(count):
        entry_id = UUID(int=first_ms + int(number * step) << 80 | 7 << 76 | 1 << 63 | draw.getrandbits(61))
        tenant = TENANTS[draw.random() < 0.4]
        kind = draw.choices(_KINDS, _KIND_WEIGHTS)[0]
        if kind == "outcome" and begun[tenant]:
            intent = begun[tenant].pop(draw.randrange(len(begun[tenant])))
            outcome = draw.choices(("succeeded", "failed", "unknown"), (95, 4, 1))[0]
            entries.append(intent._replace(id=entry_id, kind=kind, outcome=outcome, approval=None))
            continue
        entry = _draw_entry(draw, entry_id, tenant, "intent" if kind == "outcome" else kind, number)
        if entry.kind == "intent":
            begun[tenant].append(entry)
        entries.append(entry)
    return entries


_KINDS = ("read", "intent", "outcome", "refusal", "decision", "command", "yield", "circuit")
_KIND_WEIGHTS = (600, 150, 150, 60, 10, 20, 5, 5)


def _draw_entry(draw: random.Random, entry_id: UUID, tenant: str, kind: str, number: int) -> Drawn:
    trace = f"{number + 1:032x}"
    if kind == "circuit":
        return Drawn(entry_id, tenant, kind, outcome="open", trace=trace)
    user = f"user-{int(draw.random() ** 2 * _USERS)}"
    if kind in ("command", "decision"):
        return Drawn(entry_id, tenant, kind, user, outcome="succeeded", trace=trace)
    chain = draw.choices((0, 1, 2), (50, 40, 10))[0]
    agents = tuple(f"agent-{int(draw.random() ** 2 * _AGENTS)}" for _ in range(chain))
    tool = f"crm.t{int(draw.random() ** 3 * _TOOLS)}"
    if draw.random() < 0.05:
        tool = SCOPED_TOOL
    outcome = None
    if kind == "refusal":
        outcome = draw.choices(("denied", "blocked", "validation_failed"), (6, 1, 3))[0]
    elif kind == "read":
        outcome = draw.choices(("succeeded", "failed", "timed_out"), (980, 19, 1))[0]
    rules: tuple[str, ...] = ("token-scopes", f"rule-{int(draw.random() ** 3 * 50)}")
    if draw.random() < 0.001:
        rules += ("rule-rare",)
    return Drawn(
        entry_id, tenant, kind, user, agents, tool,
        resource="orders" if tool == SCOPED_TOOL else f"res-{int(tool[5:]) % 40}",
        rules=() if outcome == "validation_failed" else rules,
        outcome=outcome,
        session=_draw_session(draw),
        trace=trace,
        call=entry_id,
        approval=UUID(int=draw.getrandbits(128)) if kind == "intent" and draw.random() < 0.05 else None,
        is_of_other_grant=kind == "intent" and draw.random() < 0.5,
    )  # fmt: skip


def _draw_session(draw: random.Random) -> str | None:
    share = draw.random()
    if share < 0.2:
        return None
    return 'the "quoted" one' if share < 0.202 else f"s-{int(draw.random() ** 2 * 3000)}"


async def fill_log(
    connection: asyncpg.Connection,
    entries: Sequence[Drawn],
    version: str,
    clock: Clock,
    log: Callable[[str], None],
) -> dict[str, dict[str, str]]:
    """Write the entries of the drawn facts, with everything that a search reads beside them; return the pseudonyms."""
    await connection.execute(f"set role deputize_owner; {_MAKE_PARTITIONS.replace('{days}', str(_DAYS))}; reset role")
    tenants = sorted({each.tenant for each in entries})
    pseudonyms = {tenant: await _write_subjects(connection, tenant, clock) for tenant in tenants}
    encoder = _Encoder(pseudonyms, version, clock)
    for start in range(0, len(entries), _BATCH):
        await connection.copy_records_to_table(
            "audit_entries", schema_name="deputize", columns=("tenant", "id", "call_id", "entry", "salt"),
            records=map(encoder.encode, entries[start : start + _BATCH]),
        )  # fmt: skip
    log(f"{len(entries):,} entries written")
    await connection.copy_records_to_table(
        "calls", schema_name="deputize", columns=_CALL_COLUMNS, records=_list_call_rows(entries, clock)
    )
    # What a worker does every few seconds, for today's partitions, and what autovacuum does after a while.
    await connection.execute("vacuum (analyze) deputize.audit_entries")
    log("terms merged")
    return pseudonyms


async def wait_for_log(owner: asyncpg.Connection, clock: Clock) -> None:
    """Wait until each entry is a leaf of its tenant's log, as it is a second after calls."""
    ends_at = clock.monotonic() + _DRAIN_SECONDS
    while await owner.fetchval("select exists (select from deputize.log_queue)"):
        if clock.monotonic() > ends_at:
            raise TimeoutError(f"the log did not take in all entries within {_DRAIN_SECONDS:g} s")
        await asyncio.sleep(0.5)


async def _write_subjects(connection: asyncpg.Connection, tenant: str, clock: Clock) -> dict[str, str]:
    """Give everybody a salt, and take that of the erased person away again; return all pseudonyms."""
    subjects = [f"user-{n}" for n in range(_USERS)] + [f"{AGENT_PREFIX}agent-{n}" for n in range(_AGENTS)]
    salts = {subject: clock.random_bytes(32) for subject in subjects}
    await connection.execute("insert into deputize.tenants (tenant) values ($1) on conflict do nothing", tenant)
    await connection.execute("insert into deputize.epochs (tenant) values ($1) on conflict do nothing", tenant)
    kept = {subject: salt for subject, salt in salts.items() if subject != ERASED}
    await connection.execute(
        "insert into deputize.subjects (tenant, subject, salt) "
        "select $1, s, h from unnest($2::text[], $3::bytea[]) as t (s, h)",
        tenant, list(kept), list(kept.values()),
    )  # fmt: skip
    return {subject: compute_commitment(salt, subject.encode()) for subject, salt in salts.items()}


class _Encoder:
    """Encodes drawn facts as the product does."""

    def __init__(self, pseudonyms: dict[str, dict[str, str]], version: str, clock: Clock) -> None:
        self.pseudonyms = pseudonyms
        self._version = version
        self._clock = clock
        self._callers: dict[tuple[str, str | None, tuple[str, ...]], Caller] = {}
        self._contracts: dict[str, Contract] = {}
        self._decisions: dict[tuple[str, ...], Decision] = {}

    def encode(self, drawn: Drawn) -> tuple[str, UUID, UUID | None, bytes, bytes]:
        clock, is_call = self._clock, drawn.tool is not None
        salt = clock.random_bytes(32)
        moment = datetime.fromtimestamp((drawn.id.int >> 80) / 1000, UTC)
        body = encode_entry(
            AuditContext(
                caller=self._get_caller(drawn),
                trace_id=drawn.trace,
                call_id=None if drawn.call is None else str(drawn.call),
                session=drawn.session,
                contract=None if drawn.tool is None else self._get_contract(drawn.tool, drawn.resource or ""),
                approval_id=None if drawn.approval is None else str(drawn.approval),
            ),
            id=str(drawn.id),
            kind=drawn.kind,  # type: ignore[arg-type]  # drawn from the kinds
            time=f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z",
            arguments=compute_commitment(salt, drawn.id.bytes) if is_call else None,
            decision=self._get_decision(drawn.rules) if drawn.rules else None,
            outcome=drawn.outcome,
            error="E3203" if drawn.kind == "refusal" else None,
            result=compute_commitment(salt, drawn.trace.encode()) if drawn.outcome == "succeeded" and is_call else None,
            attempts=1 if drawn.kind in ("read", "outcome") else 0,
            latency_us=1234,
            passage=_PASSED if is_call else None,
            command="register" if drawn.kind == "command" else "approve" if drawn.kind == "decision" else None,
            subject=None if is_call else "crm.t1",
        )
        return drawn.tenant, drawn.id, drawn.call, body, salt

    def _get_caller(self, drawn: Drawn) -> Caller:
        key = (drawn.tenant, drawn.user, drawn.agents)
        if key not in self._callers:
            names = [] if drawn.user is None else [drawn.user, *(f"{AGENT_PREFIX}{each}" for each in drawn.agents)]
            known = self.pseudonyms[drawn.tenant]
            self._callers[key] = Caller(
                tenant=drawn.tenant, user=drawn.user or "", agents=drawn.agents,
                pseudonyms=tuple(known[each] for each in names),
            )  # fmt: skip
        return self._callers[key]

    def _get_contract(self, tool: str, resource: str) -> Contract:
        if tool not in self._contracts:
            namespace, name = tool.split(".")
            self._contracts[tool] = Contract.model_validate({
                "namespace": namespace, "name": name, "version": self._version, "description": "A sample of a tool",
                "handler": {"driver": "python", "target": f"tools.sample:{name}"},
                "input_schema": {"type": "object"}, "output_schema": {"type": "object"}, "effects": "write",
                "resources": [{"op": "update", "resource": resource, "scope": f"{resource}/{{id}}"}],
                "auth": {}, "timeout": {}, "idempotency": {}, "observability": {},
            })  # fmt: skip
        return self._contracts[tool]

    def _get_decision(self, rules: tuple[str, ...]) -> Decision:
        if rules not in self._decisions:
            self._decisions[rules] = Decision(rules=rules, epochs=Epochs(), policy_digest="e" * 64)
        return self._decisions[rules]


_CALL_COLUMNS: Final = (
    "tenant", "id", "state", "tool", "version", "tool_digest", "mutation_class", "caller_user", "caller_agent",
    "fingerprint", "owner", "deadline_at", "ended_at", "window_seconds", "trace",
)  # fmt: skip


def _list_call_rows(entries: Sequence[Drawn], clock: Clock) -> Iterator[tuple[Any, ...]]:
    owner, ended_at = UUID(clock.new_id()), clock.now() - timedelta(hours=1)
    for drawn in entries:
        if drawn.kind == "intent" and drawn.is_of_agent:
            agent = AGENT + (f"{_GRANT_MARK}another-grant" if drawn.is_of_other_grant else "")
            yield (
                drawn.tenant, drawn.call, "succeeded", drawn.tool, "1.0.0", "d" * 64, "write-irreversible", drawn.user,
                agent, b"f" * 32, owner, ended_at, ended_at, 60, drawn.trace,
            )  # fmt: skip
