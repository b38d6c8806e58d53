"""Which policies are in force: one immutable snapshot per tenant, renewed by epoch, like revocations.

The last few versions stay, because a commit answers with the epoch it was made under and the decision about it is made
as of that epoch, even where this process has read a newer one. A tenant that never put any has the default set.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib.resources import files as package_files

import asyncpg
import orjson

from deputize.core.decision import Decided, Question, Verdict
from deputize.core.errors import PolicyFailed, Unavailable
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.decisions import MOST_KEPT, Answers, Decisions
from deputize.govern.policy.kept import Kept
from deputize.govern.policy.rules import PolicyFile, parse, set_digest
from deputize.govern.policy.world import FactTypes
from deputize.store.pool import Connection
from deputize.store.queries import load

MOST_VERSIONS = 16
_ARGUMENT = re.compile(r"\{[^{}]+\}")
_SQL = load("policy")
# Of their own: drafts are checked and tried in the others, and however many of them, what takes force takes force.
_reading = ThreadPoolExecutor(max_workers=4, thread_name_prefix="policies")
Deciding = Callable[[CompiledPolicies], Decisions]


@cache
def default_files() -> tuple[PolicyFile, ...]:
    text = (package_files("deputize.govern.policy") / "defaults" / "default.cedar").read_text(encoding="utf-8")
    return (PolicyFile(path="default.cedar", text=text),)


class Version:
    """One set of policies and the epoch it came with. Compiled when first asked: older ones seldom are."""

    def __init__(self, since: int, digest: str, make: Callable[[], Decisions]) -> None:
        self.since = since
        self.digest = digest
        self._make = make

    @cached_property
    def decisions(self) -> Decisions:
        return self._make()

    def rest(self) -> None:
        """Lets go of what was compiled; it is compiled anew if somebody asks after all."""
        self.__dict__.pop("decisions", None)


class TenantPolicy:
    """What one tenant's policies say, as of one epoch; versions newest first."""

    def __init__(self, *, epoch: int, versions: Sequence[Version]) -> None:
        self.epoch = epoch
        self.versions = tuple(versions)
        self._newest = self.versions[0].decisions
        self._since = self.versions[0].since

    @property
    def digest(self) -> str:
        return self.versions[0].digest

    @property
    def policies(self) -> CompiledPolicies:
        return self._newest.policies

    def decide(self, question: Question, *, as_of: int | None = None) -> Decided:
        """`as_of`: the policy epoch to decide by, where this snapshot may be newer."""
        if as_of is None or as_of >= self._since:
            return self._newest.decide(question)
        return self._then(as_of).decide(question)

    def foresee(self, question: Question) -> Verdict | None:
        """What is answered whatever the arguments; None where the rules look at each call."""
        slice_ = self._newest.policies.slice_of(question)
        if slice_.fleeting or slice_.per_call:
            return None
        if not slice_.sweeping:
            return self._newest.decide(question).verdict
        named, swept = (self._newest.decide(each).verdict for each in _named_and_swept(question))
        return named if named.behavior is swept.behavior else None

    def recorded(self, question: Question, verdict: Verdict, *, as_of: int | None = None) -> Decided:
        """An answer of somebody else's, recorded beside what these policies were asked."""
        decisions = self._newest if as_of is None or as_of >= self._since else self._then(as_of)
        return decisions.recorded(question, verdict)

    def _then(self, as_of: int) -> Decisions:
        for version in self.versions:
            if version.since <= as_of:
                return version.decisions
        raise PolicyFailed(f"the policies of epoch {as_of} are not held any more, so nothing is decided by them")


class Policies:
    """Every tenant's snapshot in this process."""

    def __init__(self) -> None:
        self._snapshots: dict[str, TenantPolicy] = {}
        self._answers: Answers = Kept(MOST_KEPT)

    def known(self, tenant: str) -> TenantPolicy | None:
        return self._snapshots.get(tenant)

    async def refresh(self, connection: Connection, tenant: str, *, key: bytes) -> TenantPolicy:
        """Reads the policies if their epoch moved; a tenant without an epoch row is at 0. `key` names the records."""
        before = self._snapshots.get(tenant)
        epoch: int = await connection.fetchval(_SQL["policy_epoch"], tenant) or 0
        if before is not None and before.epoch == epoch:
            return before
        if before is not None and before.epoch > epoch:
            before = None  # the database was restored to an earlier day: nothing known can be trusted
        known = before.epoch if before is not None else -1
        rows = await connection.fetch(_SQL["policies_since"], tenant, known, epoch, MOST_VERSIONS)
        deciding = partial(Decisions, key=key, kept=self._answers)
        loop = asyncio.get_running_loop()
        after = await loop.run_in_executor(_reading, _snapshot, epoch, rows, before, deciding)
        # Two refreshes may overlap; the one that read earlier must not take back what the other learned.
        current = self._snapshots.get(tenant)
        if current is not None and current is not before and current.epoch > after.epoch:
            return current
        self._snapshots[tenant] = after
        return after


async def put(connection: Connection, tenant: str, files: Sequence[PolicyFile], facts: FactTypes, *, by: str) -> int:
    """Inside the caller's transaction; answers the epoch from which these policies decide. No files: the default set.

    They are parsed here once more, so that no way leads past it: what cannot be read cannot take force.
    """
    await asyncio.get_running_loop().run_in_executor(_reading, parse, files)
    written = orjson.dumps([{"path": file.path, "text": file.text} for file in files])
    digest = set_digest(files or default_files())
    epoch: int | None = await connection.fetchval(
        _SQL["put_policies"], tenant, digest, written, orjson.dumps(dict(facts), option=orjson.OPT_SORT_KEYS), by
    )
    if epoch is None:
        raise Unavailable("this tenant has no epochs yet, so no policies can be put for it")
    return epoch


def _snapshot(
    epoch: int, rows: Sequence[asyncpg.Record], before: TenantPolicy | None, deciding: Deciding
) -> TenantPolicy:
    """What came since, before the versions that are held already, which keep all they have learned."""
    came = [Version(row["changed_epoch"], row["digest"], partial(_decisions, row, deciding)) for row in rows]
    held = before.versions if before is not None else (_default(deciding),) if len(came) < MOST_VERSIONS else ()
    versions = [*came, *held][:MOST_VERSIONS]
    for older in versions[
        2:
    ]:  # calls on their way when policies change are decided by the set before, hardly by others
        older.rest()
    return TenantPolicy(epoch=epoch, versions=versions)


def _named_and_swept(question: Question) -> tuple[Question, Question]:
    """The question for a call that names all it changes, as far as its contract lets it, and for one that does not."""
    named, swept = (
        tuple((each.resource, each.op, _ARGUMENT.sub(word, each.scope)) for each in question.contract.resources)
        for word in ("named", "*")
    )
    return replace(question, touches=named), replace(question, touches=swept)


def _default(deciding: Deciding) -> Version:
    files = default_files()
    return Version(0, set_digest(files), lambda: deciding(CompiledPolicies(files)))


def _decisions(row: asyncpg.Record, deciding: Deciding) -> Decisions:
    files = tuple(PolicyFile(**file) for file in orjson.loads(row["files"])) or default_files()
    return deciding(CompiledPolicies(files, orjson.loads(row["facts"])))
