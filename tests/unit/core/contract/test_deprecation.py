"""The notice of a deprecated version, as each interface shows it."""

from datetime import UTC, datetime

import pytest

from deputize.core.contract.deprecation import DeprecationNotice
from deputize.core.contract.publication import EndOfLife

pytestmark = pytest.mark.requirement("CON-8")
NOTICE = DeprecationNotice(
    deprecated_at=datetime(2030, 1, 1, 12, tzinfo=UTC),
    removal_at=datetime(2030, 4, 1, 12, tzinfo=UTC),
    successor="crm.find@2.0.0",
    migration_guide="https://docs.example/move",
)


def test_http_headers_are_those_of_the_standards() -> None:
    assert NOTICE.build_headers() == [
        (b"deprecation", b"@1893499200"),
        (b"sunset", b"Mon, 01 Apr 2030 12:00:00 GMT"),
        (b"link", b'<https://docs.example/move>; rel="deprecation"'),
    ]
    assert DeprecationNotice().build_headers() == []


def test_mcp_and_rest_show_the_same_notice() -> None:
    assert NOTICE.to_meta() == {
        "deprecatedAt": "2030-01-01T12:00:00Z",
        "removalDate": "2030-04-01T12:00:00Z",
        "successor": "crm.find@2.0.0",
        "migrationGuide": "https://docs.example/move",
    }
    assert list(NOTICE.to_json().values()) == list(NOTICE.to_meta().values())


def test_a_contract_can_announce_its_own_end() -> None:
    life = EndOfLife(deprecation_date="2030-01-01", sunset_date="2030-04-01", replacement="crm.find")
    notice = DeprecationNotice.from_contract(life)
    assert notice.removal_at == datetime(2030, 4, 1, tzinfo=UTC)
    assert "refused from 2030-04-01T00:00:00Z on; use crm.find instead" in notice.describe("crm.old 1.0.0")
    assert DeprecationNotice.from_contract(EndOfLife()) == DeprecationNotice()
