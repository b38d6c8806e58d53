"""The gateway's own tools stay what they are: a changed contract under a registered version would be refused."""

import pytest

from deputize.catalog import builtin_contracts
from deputize.core.contract.contract import Contract

# A change of a contract changes its digest, and needs a new version: gateways have registered this one.
DIGESTS = {
    ("results.read", "1.0.0"): "sha256:729081810083c05a608e80e6cf9f1d89464c815b46c86b7de284e749b82ee9e9",
}


@pytest.mark.requirement("CON-8")
def test_a_builtin_contract_changes_only_with_its_version() -> None:
    contracts = [each for each in vars(builtin_contracts).values() if isinstance(each, Contract)]
    assert {(each.full_name, each.version): each.digest for each in contracts} == DIGESTS
