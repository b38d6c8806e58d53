"""What is logged of an error shows no secret, in either form."""

import pytest
import structlog

from deputize.core.settings import TelemetrySettings
from deputize.interfaces.cli.project.logs import configure_logs


@pytest.mark.requirement("GOV-6")
@pytest.mark.parametrize("log_json", [True, False])
def test_reasons_and_tracebacks_are_redacted(log_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    previous = structlog.get_config()
    try:
        configure_logs(TelemetrySettings(log_json=log_json))
        log = structlog.get_logger()
        try:
            raise ValueError("cannot sign in with password=tr0ub4dor")
        except ValueError:
            log.exception("run_failed", reason="the token is a1b2c3")
    finally:
        structlog.configure(**previous)
    logged = capsys.readouterr().err
    assert "ValueError: cannot sign in with password=[redacted]" in logged
    assert "a1b2c3" not in logged
    assert "tr0ub4dor" not in logged
