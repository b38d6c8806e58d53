"""Name the kinds of audit entries and the decisions they record, for entries, filters, interfaces and commands."""

from typing import Final, Literal, get_args

EntryKind = Literal["read", "refusal", "intent", "outcome", "command", "decision", "yield", "circuit"]
DecisionName = Literal["allow", "ask", "deny"]
# What the entry of a dry run has as its command: nothing was executed.
DRY_RUN: Final = "dry_run"
ENTRY_KINDS: Final[tuple[EntryKind, ...]] = get_args(EntryKind)
DECISION_NAMES: Final[tuple[DecisionName, ...]] = get_args(DecisionName)
