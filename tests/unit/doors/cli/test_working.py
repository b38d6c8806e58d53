"""A worker beside `deputize dev` carries what that takes on."""

from pathlib import Path

import pytest

from deputize.core.settings import Settings
from deputize.doors.cli.working import beside_dev
from deputize.govern.identity.development import ISSUER

pytestmark = pytest.mark.requirement("NEW-3")


def test_it_knows_the_issuer_whose_callers_made_the_runs(tmp_path: Path) -> None:
    settings = beside_dev(Settings(folder=tmp_path), "postgresql://localhost/dev")
    assert [each.issuer for each in settings.identity.issuers] == [ISSUER]
    assert settings.database.url is not None
    assert settings.database.url.get_secret_value() == "postgresql://localhost/dev"
