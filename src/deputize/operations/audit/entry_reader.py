"""Read audit entries that a caller may see: translate names into pseudonyms, read pages, and name who is in them.

An administrator or auditor sees the tenant's entries. A user sees those in which they are the user, an agent only those
of exactly its chain: entries of another agent may tell what exceeds its delegation. Neither sees calls that their token
does not cover. Names are looked up for each page and never kept, so a person who was erased is found by no name, and
their entries show the pseudonym.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.caller import Caller
from deputize.core.canonical import compute_commitment
from deputize.core.errors import AuditQueryTooBroad
from deputize.core.sensitive.text import redact_personal_data
from deputize.core.subject import AGENT_PREFIX
from deputize.evidence.audit_entries import encode_act
from deputize.evidence.entry_filters import EntryFilter, get_decision
from deputize.lifecycle.call_access import may_read_entry
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_rows import AuditEntryRow
from deputize.store.queries import load_statements

_SQL = load_statements("audit_search")
_KEYS = load_statements("keys")
FIRST_ID: Final = UUID(int=0)
END_ID: Final = UUID(int=(1 << 128) - 1)
_PSEUDONYM_LENGTH: Final = 64
# How long one search reads, and when its statement is ended.
SEARCH_MS: Final = 1000
_STATEMENT_TIMEOUT: Final = "5s"
# A page of the console is loaded anew at will: a look at the same entries is recorded once in this time.
PAGE_SECONDS: Final = 60.0
_MAX_LOOKS: Final = 10_000


EntryRow = tuple[UUID, bytes, dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditQuery:
    """What someone asks of the audit: callers and agents by name, or by pseudonym, and the time."""

    caller: str | None = None
    agent: str | None = None
    filter: EntryFilter = field(default_factory=EntryFilter)
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PermittedSearch:
    """A query with the limits of who makes it. `filter` is None if nothing can match."""

    caller: Caller
    filter: EntryFilter | None
    first: UUID
    before: UUID
    # What the audit entry says about the search: pseudonyms, no names.
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryPage:
    """Entries newest first; `searched_to` is where the search stopped, None if nothing older is left."""

    rows: Sequence[EntryRow]
    searched_to: UUID | None
    is_cut: bool = False


class EntryReader:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._recorded_looks: BoundedDict[tuple[object, ...], float] = BoundedDict(_MAX_LOOKS)

    async def check_caller(self, caller: Caller) -> None:
        """Raise if the caller was revoked."""
        (await self.runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)

    async def permit(self, caller: Caller, query: AuditQuery) -> PermittedSearch:
        """Translate a query, and limit it to what the caller may see."""
        await self.check_caller(caller)
        return self.limit_query(caller, query, await self._load_pseudonyms(caller.tenant, query))

    def limit_query(self, caller: Caller, query: AuditQuery, pseudonyms: Mapping[str, str]) -> PermittedSearch:
        """Limit a query to what the caller may see, with the pseudonyms of the subjects that it names.

        A name that has none is in no entry; a pseudonym stands for itself, also that of someone who was erased.
        """
        user, agent = (
            pseudonyms.get(subject or "") or (text if text and _is_pseudonym(text) else None)
            for subject, text in zip(_list_subjects(query), (query.caller, query.agent), strict=True)
        )
        is_known = (user is None) == (query.caller is None) and (agent is None) == (query.agent is None)
        named_filter = replace(query.filter, user=user, agent=agent)
        entry_filter: EntryFilter | None = named_filter
        if not caller.is_auditor:
            own_user = caller.pseudonyms[0]
            chain = caller.pseudonyms if caller.agents else ()
            is_own = user in (None, own_user) and bool(own_user)
            entry_filter = replace(named_filter, user=own_user, chain=chain) if is_own else None
        return PermittedSearch(
            caller=caller,
            filter=entry_filter if is_known else None,
            first=FIRST_ID if query.since is None else build_first_id(query.since),
            before=END_ID if query.until is None else build_first_id(query.until),
            description=_describe(named_filter, query),
        )

    async def is_match(self, search: PermittedSearch, entry: dict[str, Any]) -> bool:
        """Tell whether an entry matches, and its reader may see it."""
        return bool(await self.list_matches(search, [(UUID(entry["id"]), b"", entry)]))

    async def list_matches(self, search: PermittedSearch, rows: Sequence[EntryRow]) -> list[EntryRow]:
        """List the entries that match, and that their reader may see. What ids a search begins and ends with is not
        looked at.
        """
        caller, entry_filter = search.caller, search.filter
        matches = [] if entry_filter is None else [each for each in rows if entry_filter.is_match(each[2])]
        agent_keys: dict[str, str] = {}
        if matches and caller.agents and not caller.is_auditor:
            # Entries have the names of agents, and their calls also the delegation.
            call_ids = {each[2]["call"] for each in matches if "call" in each[2]}
            async with self.runtime.store.read_transaction(caller.tenant) as connection:
                keys = await connection.fetch(_SQL["list_agents_of_calls"], caller.tenant, sorted(call_ids))
            agent_keys = {str(row["id"]): row["caller_agent"] for row in keys}
        return [
            each
            for each in matches
            if agent_keys.get(each[2].get("call", ""), caller.agent_key) == caller.agent_key
            and await may_read_entry(self.runtime, caller, each[2], for_auditor=True)
        ]

    async def _load_pseudonyms(self, tenant: str, query: AuditQuery) -> dict[str, str]:
        """Load the pseudonyms of the user and agent that a query names. A name that has none gets none."""
        names = [subject for subject in _list_subjects(query) if subject]
        if not names:
            return {}
        async with self.runtime.store.read_transaction(tenant) as connection:
            rows = await connection.fetch(_KEYS["load_subject_salts"], tenant, names)
        return {row["subject"]: compute_commitment(row["salt"], row["subject"].encode()) for row in rows}

    async def read_page(
        self, tenant: str, search: PermittedSearch, before: UUID | None, limit: int, *, milliseconds: int = SEARCH_MS
    ) -> EntryPage:
        """Read a page before an id. A page that is cut has less than it could, because the time was over."""
        entry_filter = search.filter
        position = search.before if before is None else min(before, search.before)
        if entry_filter is None or position <= search.first:
            return EntryPage(rows=(), searched_to=None)
        try:
            # One snapshot for all statements of the function: an entry committed between two would push another out.
            async with self.runtime.store.read_transaction(tenant, repeatable=True) as connection:
                await connection.execute(_SQL["set_time_limit"], _STATEMENT_TIMEOUT)
                rows = await connection.fetch(
                    _SQL["search_entries"],
                    entry_filter.list_labels(),
                    orjson.dumps(entry_filter.list_needles()).decode(),
                    search.first,
                    position,
                    limit,
                    milliseconds,
                )
        except asyncpg.QueryCanceledError:
            raise AuditQueryTooBroad(
                "the search was ended after five seconds; it changed nothing", nothing_happened=True
            ) from None
        is_cut = bool(rows) and rows[-1]["entry"] is None
        searched_to = rows[-1]["id"] if is_cut or len(rows) >= limit else None
        candidates = [(row["id"], row["entry"], orjson.loads(row["entry"])) for row in rows if row["entry"] is not None]
        matches = await self.list_matches(search, candidates)
        return EntryPage(rows=matches, searched_to=searched_to, is_cut=is_cut)

    async def find_newest(
        self, tenant: str, searches: Sequence[PermittedSearch], *, milliseconds: int
    ) -> list[dict[str, Any] | None]:
        """Find the newest entry of each of several searches of all times, each for so long; None if none was found."""
        wanted = [
            {"number": number, "labels": each.filter.list_labels(), "needles": each.filter.list_needles()}
            for number, each in enumerate(searches)
            if each.filter is not None
        ]
        entries: list[dict[str, Any] | None] = [None] * len(searches)
        if not wanted:
            return entries
        try:
            async with self.runtime.store.read_transaction(tenant, repeatable=True) as connection:
                await connection.execute(_SQL["set_time_limit"], _STATEMENT_TIMEOUT)
                rows = await connection.fetch(
                    _SQL["find_newest_entries"], orjson.dumps(wanted).decode(), FIRST_ID, END_ID, milliseconds
                )
        except asyncpg.QueryCanceledError:
            return entries
        for row in rows:
            candidate = (row["id"], row["entry"], orjson.loads(row["entry"]))
            for _, _, entry in await self.list_matches(searches[row["number"]], [candidate]):
                entries[row["number"]] = entry
        return entries

    async def load_entry(self, tenant: str, entry_id: str) -> dict[str, Any] | None:
        """Load one entry; None if there is none, or the id is not one."""
        try:
            wanted_id = UUID(entry_id)
        except ValueError:
            return None
        async with self.runtime.store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(_SQL["load_entry"], tenant, wanted_id)
        return None if row is None else orjson.loads(row["entry"])

    async def load_names(self, tenant: str, pseudonyms: Iterable[str]) -> dict[str, str]:
        """Load the names behind pseudonyms; those of erased people have none."""
        subjects = await self.load_subjects(tenant, pseudonyms)
        return {pseudonym: subject.removeprefix(AGENT_PREFIX) for pseudonym, subject in subjects.items()}

    async def load_subjects(self, tenant: str, pseudonyms: Iterable[str]) -> dict[str, str]:
        """Load the subjects behind pseudonyms: the names of people, and those of agents with their prefix."""
        distinct_pseudonyms = sorted(set(pseudonyms))
        if not distinct_pseudonyms:
            return {}
        async with self.runtime.store.read_transaction(tenant) as connection:
            rows = await connection.fetch(_SQL["name_pseudonyms"], distinct_pseudonyms)
        return {row["pseudonym"]: row["subject"] for row in rows}

    async def describe_entries(self, tenant: str, rows: Sequence[EntryRow]) -> list[dict[str, Any]]:
        """Describe entries with the names of their callers."""
        names = await self.load_names(tenant, (each for _, _, entry in rows for each in entry["caller"]))
        return [describe_entry(entry, names) for _, _, entry in rows]

    async def record_look(self, caller: Caller, command: str, description: str, *, seconds: float) -> bool:
        """Record what the same person looks at again and again, once in so many seconds; False if it is recorded.

        A search that differs, or a token that sees other entries, is another look. Other processes record their own.
        """
        key = (caller.tenant, *caller.pseudonyms, caller.scopes, caller.capabilities, command, description)
        now = self.runtime.clock.monotonic()
        recorded_at = self._recorded_looks.get(key)
        if recorded_at is not None and now - recorded_at < seconds:
            return False
        await self.record(caller, command, f"{description}, for {seconds:g} s")
        self._recorded_looks.put(key, now)
        return True

    async def record(self, caller: Caller, command: str, description: str) -> None:
        """Record that someone reads the audit; what they read is released after that."""
        runtime = self.runtime
        entry_id = runtime.clock.new_id()
        body = encode_act(caller, id=entry_id, time=runtime.stamps.now(), command=command, subject=description)
        await runtime.writer.put(AuditEntryRow(caller.tenant, entry_id, None, body, None))


def describe_entry(entry: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Describe an entry: its facts as they are stored, what was decided, and the names of its callers."""
    people = [names.get(each) for each in entry["caller"]]
    return {
        "id": entry["id"],
        "time": entry["time"],
        "user": people[0] if people else None,
        "agents": people[1:],
        "decision": get_decision(entry),
        "entry": entry,
    }


def build_first_id(moment: datetime) -> UUID:
    """Build the smallest id of a moment."""
    milliseconds = int(moment.astimezone(UTC).timestamp() * 1000)
    return UUID(int=max(0, min(milliseconds, (1 << 48) - 1)) << 80)


def get_time_of_id(entry_id: UUID) -> datetime:
    """Read the time from an id."""
    return datetime.fromtimestamp(min(entry_id.int >> 80, 253402300799999) / 1000, UTC)


def _list_subjects(query: AuditQuery) -> tuple[str | None, str | None]:
    """List the subjects that a query names: the user, and the agent."""
    return query.caller, query.agent and f"{AGENT_PREFIX}{query.agent}"


def _is_pseudonym(text: str) -> bool:
    return len(text) == _PSEUDONYM_LENGTH and all(each in "0123456789abcdef" for each in text)


def _describe(entry_filter: EntryFilter, query: AuditQuery) -> str:
    parts = [
        # What someone searches for may be personal data, and the entry about the search could not be erased.
        f"{name}={value if name in ('user', 'agent') else redact_personal_data(value)}"
        for name in ("user", "agent", "tool", "decision", "rule", "outcome", "resource", "session", "trace", "kind")
        if (value := getattr(entry_filter, name)) is not None
    ]
    if entry_filter.of_calls:
        parts.append("calls=true")
    # A name without entries may be that of someone who was erased.
    if query.caller is not None and entry_filter.user is None:
        parts.append("user=(unknown)")
    if query.agent is not None and entry_filter.agent is None:
        parts.append("agent=(unknown)")
    times = (("from", query.since), ("to", query.until))
    parts += [f"{name}={moment.astimezone(UTC).isoformat()}" for name, moment in times if moment is not None]
    return " ".join(parts) or "everything"
