"""Describe what an act changes, for the person who confirms it in the terminal of `deputize dev`."""

from collections.abc import Sequence

from deputize.core.contract.contract import Contract
from deputize.govern.approvals.confirmation_codes import DocumentChange
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.policy_parser import PolicyFile


def list_policy_changes(active: Sequence[PolicyFile], files: Sequence[PolicyFile]) -> tuple[DocumentChange, ...]:
    """List the files that differ. Without files, the default policies would become active."""
    old = {file.path: file.text for file in active}
    new = {file.path: file.text for file in files or load_default_files()}
    return tuple(
        DocumentChange(name=path, old=old.get(path), new=new.get(path))
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    )


def describe_contract_change(current_contract: Contract | None, contract: Contract) -> DocumentChange:
    """Describe a contract beside the one that calls use now, one line for each thing it says."""
    old, new = (None if each is None else each.model_dump_json(indent=2) for each in (current_contract, contract))
    return DocumentChange(name=contract.full_name, old=old, new=new)
