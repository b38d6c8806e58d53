"""A worker beside `deputize dev` carries what that takes on."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from deputize.core.settings import DatabaseSettings, Settings
from deputize.govern.identity.dev_issuer import ISSUER
from deputize.interfaces.cli.commands.service.work import use_dev_database

pytestmark = pytest.mark.requirement("NEW-3")


def test_it_knows_the_issuer_whose_callers_made_the_runs(tmp_path: Path) -> None:
    settings = use_dev_database(Settings(folder=tmp_path), "postgresql://localhost/dev")
    assert [each.issuer for each in settings.identity.issuers] == [ISSUER]
    assert settings.database.url is not None
    assert settings.database.url.get_secret_value() == "postgresql://localhost/dev"


@pytest.mark.parametrize("url", [None, "postgresql://db.example.com/mine"])
def test_it_keeps_the_environment_that_the_runs_were_authorized_in(tmp_path: Path, url: str | None) -> None:
    database = DatabaseSettings(url=None if url is None else SecretStr(url))
    settings = use_dev_database(Settings(folder=tmp_path, database=database), "postgresql://localhost/dev")
    assert settings.environment == "development"
    assert settings.database.url is not None
    assert settings.database.url.get_secret_value() == (url or "postgresql://localhost/dev")
