"""Which servers a database may run on."""

import pytest

from deputize.core.config_error import ConfigError
from deputize.store.schema_revision import require_supported_version


def test_a_server_that_is_too_old_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"runs on PostgreSQL 15\.14, but Deputize needs 16 or newer: before 16"):
        require_supported_version(150_014, "15.14 (Debian 15.14-0+deb12u1)")
    require_supported_version(160_000, "16.0")
