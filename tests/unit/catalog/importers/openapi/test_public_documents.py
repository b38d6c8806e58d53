"""Import documents that services publish: every operation becomes an admitted contract, or says why not."""

import gzip
import time
from pathlib import Path

import pytest

from deputize.catalog.importers.openapi.contracts import build_service
from deputize.catalog.importers.openapi.document import iterate_operations, parse_document
from deputize.catalog.importers.openapi.security import choose_schemes
from deputize.catalog.registration_rules import admit_contract
from tests.support.openapi_service import make_service

pytestmark = [pytest.mark.requirement("EXE-1"), pytest.mark.requirement("CON-3")]
FOLDER = Path(__file__).parents[4] / "support" / "openapi_documents"
# For each document, its operations and how many of them are refused.
DOCUMENTS = {
    "petstore.json": (20, 3), "galaxy.yaml": (9, 1), "readme.json.gz": (54, 4), "airflow.yaml.gz": (128, 0),
    "github.json.gz": (1223, 1),
}  # fmt: skip
# Processor time for a thousand operations, three times what it takes: to notice a cost that grows with the document.
MAX_SECONDS_PER_THOUSAND = 10.0


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name.startswith("github") else ()) for name in DOCUMENTS],
)
def test_every_operation_becomes_a_contract_or_says_why_not(name: str) -> None:
    content = (FOLDER / name).read_bytes()
    document = parse_document(gzip.decompress(content) if name.endswith(".gz") else content)
    operations = list(iterate_operations(document))
    scheme = next(iter(choose_schemes(document, operations)), None)
    credential = "vault" if scheme else "none"
    started_at = time.process_time()
    built = build_service(make_service(credential=credential, security=scheme), document)
    seconds = time.process_time() - started_at
    assert (len(operations), len(built.refusals)) == DOCUMENTS[name]
    assert len(built.contracts) + len(built.refusals) == len(operations)
    assert all(each.reason for each in built.refusals)
    assert seconds <= 5 + MAX_SECONDS_PER_THOUSAND * len(operations) / 1000
    for contract in list(built.contracts.values())[:50]:
        admit_contract(contract)
    assert len({each.full_name for each in built.contracts.values()}) == len(built.contracts)
