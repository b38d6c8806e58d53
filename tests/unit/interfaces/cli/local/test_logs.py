"""What is logged of an error shows no secret, in either form."""

import logging

import pytest
import structlog

from deputize.core.settings import TelemetrySettings
from deputize.interfaces.cli.local.logs import RedactingFormatter, configure_logs


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
            log.exception(
                "run_failed",
                reason="the token is a1b2c3",
                call_id="0190a5b2-7c3d-7e4f-8a9b-0c1d2e3f4a5b",
                user="ana@example.org",
                tried=["10.1.2.3"],
                cause=ValueError("pin of 4111111111111111"),
            )
    finally:
        structlog.configure(**previous)
    logged = capsys.readouterr().err
    assert "0190a5b2-7c3d-7e4f-8a9b-0c1d2e3f4a5b" in logged
    for mark, value in (("[email]", "ana@"), ("[ip]", "10.1.2.3"), ("[card]", "4111")):
        assert mark in logged
        assert value not in logged
    assert "ValueError: cannot sign in with password=[redacted]" in logged
    assert "a1b2c3" not in logged
    assert "tr0ub4dor" not in logged


@pytest.mark.requirement("GOV-6")
def test_what_libraries_log_is_redacted_with_its_traceback() -> None:
    try:
        raise ValueError("no answer from ana@example.org")
    except ValueError as error:
        record = logging.LogRecord(
            "library", logging.ERROR, __file__, 1, "password=%s", ("tr0ub4dor",), (ValueError, error, None)
        )
    text = RedactingFormatter("%(levelname)s %(name)s %(message)s").format(record)
    assert text.startswith("ERROR library password=[redacted]")
    assert text.endswith("ValueError: no answer from [email]")
