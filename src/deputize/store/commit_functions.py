"""Call the functions of the schema that commit rows, each with its parameters by name.

A function is defined once, by the groups of parameters it takes: the group `openings` of rows `OpenCallRow` has the
parameters `openings_tenant`, `openings_call_id` and so on. The order of a row's fields is thereby the order of its
arguments, and no other place repeats it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import asyncpg

from deputize.store.commit_rows import (
    ApprovalRequestRow,
    AuditEntryRow,
    BeginRunRow,
    CloseCallRow,
    FailedReadRow,
    JournalRow,
    OpenCallRow,
    ResourceLock,
    RunRow,
)
from deputize.store.queries import load_statements

# What `queue_runs` raises if a tenant would have too many queued calls; the detail names the tenant.
QUEUE_FULL: Final = "DQ001"
RETRYABLE_ERRORS: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)
# The server is away, full, or no longer the primary: not the fault of a row, so no row is rejected for it.
OUTAGE_ERRORS: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    OSError,
    TimeoutError,
)


class CommitFunction:
    """One function: its SQL, and its arguments in the order of that SQL."""

    def __init__(self, name: str, *parameters: str, **groups: Sequence[str]) -> None:
        self._parameters = parameters
        self._groups: Mapping[str, Sequence[str]] = groups
        self._name = name
        self.sql = self._build_sql(first=1)

    def _build_sql(self, *, first: int) -> str:
        names = (
            *self._parameters,
            *(f"{group}_{field}" for group, fields in self._groups.items() for field in fields),
        )
        arguments = ", ".join(f"{each} => ${number}" for number, each in enumerate(names, first))
        return f"select * from deputize.{self._name}({arguments})"

    def build_sql_with_failed_reads(self) -> str:
        """Build the statement that also stores failed reads. Its first arguments are the boot id and their fields, all
        but the audit entry: that is one of the entries.
        """
        return (
            f"with calls as ({_FAILED_READS['insert_calls']}), outcomes as ({_FAILED_READS['insert_outcomes']}) "
            + self._build_sql(first=1 + len(FailedReadRow._fields))
        )

    def build_batch_arguments(self, *parameters: object, **rows: Sequence[Iterable[Any]]) -> list[object]:
        """List the arguments of a function that takes an array per field; a group that is left out is empty."""
        self._require_known(parameters, rows)
        arguments = list(parameters)
        for group, fields in self._groups.items():
            group_rows = rows.get(group)
            arguments += zip(*group_rows, strict=True) if group_rows else [()] * len(fields)
        return arguments

    def build_row_arguments(self, *parameters: object, **row: Sequence[Any]) -> list[object]:
        """List the arguments of a function that takes one value per field."""
        self._require_known(parameters, row)
        return [*parameters, *(value for group in self._groups for value in row[group])]

    def _require_known(self, parameters: Sequence[object], groups: Mapping[str, object]) -> None:
        if len(parameters) != len(self._parameters) or not groups.keys() <= self._groups.keys():
            raise TypeError(f"expected {self._parameters} and {tuple(self._groups)}, not {tuple(groups)}")


# All but the last: the journal has rows of its own.
_CLOSING_FIELDS: Final = CloseCallRow._fields[:-1]
# Parts of one statement, so without the semicolons that end them in their file.
_FAILED_READS: Final = {name: text.removesuffix(";") for name, text in load_statements("failed_reads").items()}

COMMIT_CALLS: Final = CommitFunction(
    "commit_calls",
    "tenants",
    "boot",
    openings=OpenCallRow._fields,
    closings=_CLOSING_FIELDS,
    entries=AuditEntryRow._fields,
    journal=JournalRow._fields,
)
COMMIT_ENTRIES: Final = CommitFunction("commit_entries", "tenants", entries=AuditEntryRow._fields)
COMMIT_WITH_FAILED_READS: Final = {each: each.build_sql_with_failed_reads() for each in (COMMIT_CALLS, COMMIT_ENTRIES)}
QUEUE_RUNS: Final = CommitFunction(
    "queue_runs", "tenants", "boot", openings=OpenCallRow._fields, runs=RunRow._fields, callbacks=("request",)
)
BEGIN_RUNS: Final = CommitFunction(
    "begin_runs", "tenants", "boot",
    beginnings=[field for field in BeginRunRow._fields if field != "locks"],
    locks=("call_id", *ResourceLock._fields),
    releases=("call_id", "namespace", "resource"),
)  # fmt: skip
SUBMIT_FOR_APPROVAL: Final = CommitFunction(
    "submit_for_approval", "boot",
    opening=OpenCallRow._fields, run=RunRow._fields, callback=("request",), approval=ApprovalRequestRow._fields,
)  # fmt: skip
REQUEST_APPROVAL_AGAIN: Final = CommitFunction(
    "request_approval_again", "p_tenant", "p_call_id", "p_epoch", "p_entry_id", "p_entry",
    approval=ApprovalRequestRow._fields,
)  # fmt: skip
CONTINUE_CALL_AS_RUN: Final = CommitFunction(
    "continue_call_as_run", "p_boot", "p_tenant", "p_call_id", "p_epoch", run=RunRow._fields
)
SETTLE_UNKNOWN_CALL: Final = CommitFunction("settle_unknown_call", closing=_CLOSING_FIELDS, journal=JournalRow._fields)
