"""Have the checkpoints of tenants' logs cosigned by witnesses, in the process that sequences.

A witness that is away or refuses holds up neither calls nor the log: what is not witnessed yet is tried again, with the
newest checkpoint. Cosigning twice does no harm, so no lease is needed beyond that of the sequencer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from deputize.core.bounded_dict import BoundedDict
from deputize.core.clock import Clock
from deputize.core.errors import Problem
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.evidence.log.merkle_tree import plan_consistency
from deputize.evidence.log.signed_note import NoteSignature, SignedNote, parse_note
from deputize.evidence.log.tiles import InvalidTile
from deputize.evidence.metrics import Metrics
from deputize.evidence.tenant_log.log_tiles import load_range_hashes
from deputize.evidence.tenant_log.witness_client import Send, Witness, WitnessRefusal, request_cosignature
from deputize.store.pool import CONNECTION_ERRORS, Store
from deputize.store.queries import load_statements

_SQL = load_statements("log")
_INTERVAL_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 60.0
_BATCH_LOGS: Final = 50
_CONCURRENCY: Final = 8
_MAX_REMEMBERED: Final = 20_000
log = structlog.get_logger(__name__)


class LogWitnessing(PeriodicTask):
    """Runs in every gateway with witnesses, and works in the one that sequences."""

    task_name = "log witnessing"
    tolerated_errors = CONNECTION_ERRORS
    runs_at_start = False

    def __init__(
        self,
        store: Store,
        clock: Clock,
        witnesses: Sequence[Witness],
        *,
        threshold: int | None,
        send: Send,
        metrics: Metrics,
        is_sequencer: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._store = store
        self._witnesses = witnesses
        self._threshold = len(witnesses) if threshold is None else threshold
        self._send = send
        self._metrics = metrics
        self._is_sequencer = is_sequencer
        self._pauses = _WitnessPauses(clock)
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self._after_tenant = ""
        # What each witness knows, by its name and the tenant; it says so itself when this is wrong.
        self._known_sizes: BoundedDict[tuple[str, str], int] = BoundedDict(_MAX_REMEMBERED)
        # The cosignatures of a log's newest checkpoint while there are too few of them, by size and witness.
        self._cosignatures: BoundedDict[str, tuple[int, dict[str, NoteSignature]]] = BoundedDict(_MAX_REMEMBERED)

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    def report_error(self, error: Exception) -> None:
        log.warning("log_witnessing_failed", reason=repr(error))

    async def run_step(self) -> float:
        """Ask for the cosignatures of the newest checkpoints that have too few."""
        if not self._is_sequencer():
            self._metrics.log_unwitnessed_seconds.set(0)
            return self.interval_seconds
        async with self._store.write_transaction() as connection:
            rows = await connection.fetch(_SQL["list_unwitnessed_logs"])
        self._metrics.log_unwitnessed_seconds.set(max((row["seconds"] for row in rows), default=0.0))
        tenants = [row["tenant"] for row in rows]
        batch = [tenant for tenant in tenants if tenant > self._after_tenant][:_BATCH_LOGS] or tenants[:_BATCH_LOGS]
        self._after_tenant = batch[-1] if batch else ""
        await asyncio.gather(*(self._witness_log(tenant) for tenant in batch))
        return self.interval_seconds

    async def _witness_log(self, tenant: str) -> None:
        async with self._slots:
            async with self._store.read_transaction(tenant) as connection:
                row = await connection.fetchrow(_SQL["load_newest_checkpoint"], tenant)
            if row is None:
                return
            size, note = row["size"], parse_note(row["note"])
            known_size, cosignatures = self._cosignatures.get(tenant) or (0, {})
            if known_size != size:
                cosignatures = {}
            missing = [each for each in self._witnesses if each.name not in cosignatures]
            answers = await asyncio.gather(*(self._ask(witness, tenant, size, note) for witness in missing))
            cosignatures |= {witness.name: each for witness, each in zip(missing, answers, strict=True) if each}
            self._cosignatures.put(tenant, (size, cosignatures))
            if len(cosignatures) < self._threshold:
                return
            signatures = [*note.signatures, *cosignatures.values()]
            witnessed_note = str(SignedNote(text=note.text, signatures=signatures)).encode()
            async with self._store.write_transaction() as connection:
                await connection.execute(
                    _SQL["insert_witnessed_checkpoint"], tenant, size, witnessed_note, len(cosignatures)
                )
            self._cosignatures.discard(tenant)

    async def _ask(self, witness: Witness, tenant: str, size: int, note: SignedNote) -> NoteSignature | None:
        if self._pauses.is_pausing(witness.name, tenant):
            return None
        try:
            cosignature = await self._exchange(witness, tenant, size, note)
        except Problem as problem:
            self._report(witness, tenant, WitnessRefusal("unreachable", problem.message))
            return None
        except WitnessRefusal as refusal:
            self._report(witness, tenant, refusal)
            return None
        self._pauses.end(witness.name, tenant)
        if cosignature is not None:
            self._known_sizes.put((witness.name, tenant), size)
        return cosignature

    async def _exchange(self, witness: Witness, tenant: str, size: int, note: SignedNote) -> NoteSignature | None:
        """Send the checkpoint, and once more if the witness knows another size than was assumed."""
        old_size = min(self._known_sizes.get((witness.name, tenant)) or 0, size)
        for _ in range(2):
            proof = await self._load_proof(tenant, old_size, size)
            answer = await request_cosignature(self._send, witness, note, old_size, proof)
            if isinstance(answer, NoteSignature):
                return answer
            if answer == old_size:
                raise WitnessRefusal("conflict", f"it cosigned another log of {answer} entries")
            if answer > size:
                if answer <= await self._load_newest_size(tenant):
                    return None
                raise WitnessRefusal("conflict", f"it cosigned {answer} entries, and this log has {size}")
            old_size = answer
        raise WitnessRefusal("refused", "the size that it knows changed meanwhile")

    async def _load_proof(self, tenant: str, old_size: int, size: int) -> list[bytes]:
        async with self._store.read_transaction(tenant) as connection:
            try:
                return await load_range_hashes(connection, tenant, plan_consistency(old_size, size))
            except InvalidTile as error:
                raise WitnessRefusal("conflict", f"no proof for it can be made: {error}") from error

    async def _load_newest_size(self, tenant: str) -> int:
        async with self._store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(_SQL["load_newest_checkpoint"], tenant)
        return 0 if row is None else int(row["size"])

    def _report(self, witness: Witness, tenant: str, refusal: WitnessRefusal) -> None:
        self._metrics.log_witness_refusals.labels(witness.name, refusal.kind).inc()
        is_first = self._pauses.begin(witness.name, "" if refusal.kind == "unreachable" else tenant)
        if not is_first:
            return
        if refusal.kind == "conflict":
            log.error(
                "witness_knows_another_log",
                witness=witness.name,
                tenant=tenant,
                reason=str(refusal),
                advice="the database was restored or changed, or a copy of it signs as well: compare them",
            )
        else:
            log.warning("checkpoint_not_cosigned", witness=witness.name, tenant=tenant, reason=str(refusal))


class _WitnessPauses:
    """Asks a witness that is away, or that refuses a log, less and less often, down to once in a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: BoundedDict[tuple[str, str], tuple[float, float]] = BoundedDict(_MAX_REMEMBERED)

    def is_pausing(self, witness: str, tenant: str) -> bool:
        """Tell whether the witness is not to be asked about this tenant's log now."""
        ends = [pause[1] for key in ((witness, ""), (witness, tenant)) if (pause := self._pauses.get(key))]
        return max(ends, default=0.0) > self._clock.monotonic()

    def begin(self, witness: str, tenant: str) -> bool:
        """Pause; return whether it is the first time in a row."""
        previous = self._pauses.get((witness, tenant))
        seconds = _INTERVAL_SECONDS if previous is None else min(previous[0] * 2, _MAX_PAUSE_SECONDS)
        self._pauses.put((witness, tenant), (seconds, self._clock.monotonic() + seconds))
        return previous is None

    def end(self, witness: str, tenant: str) -> None:
        """Forget the pauses of a witness that answered."""
        self._pauses.discard((witness, ""))
        self._pauses.discard((witness, tenant))
