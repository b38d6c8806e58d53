"""Environment beats file beats default, and nothing misspelt is passed over."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deputize.core.settings import EventSettings, EventSinkSettings, GrpcSettings, McpServerSettings, Settings
from deputize.core.settings.base import SettingsSection
from tests.support.openapi_service import make_service


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_file_and_environment_the_defaults_hold() -> None:
    settings = Settings()
    assert settings.server.port == 7070
    assert settings.server.host == settings.server.metrics_host == "127.0.0.1"
    assert settings.database.url is None


def test_one_port_moves_every_listener_unless_the_other_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_ports(**env: str) -> tuple[int, int]:
        for name in ("PORT", "METRICS_PORT"):
            monkeypatch.delenv(f"DEPUTIZE_SERVER__{name}", raising=False)
        for name, value in env.items():
            monkeypatch.setenv(f"DEPUTIZE_SERVER__{name}", value)
        server = Settings().server
        return server.port, server.get_metrics_port()

    assert read_ports() == (7070, 7071)
    assert read_ports(PORT="8080") == (8080, 8081)
    assert read_ports(PORT="8080", METRICS_PORT="9100") == (8080, 9100)
    assert read_ports(PORT="0") == (0, 0)
    assert read_ports(PORT="65535") == (65535, 0)


def test_the_file_beats_the_default(empty_folder: Path) -> None:
    (empty_folder / "deputize.toml").write_text("[server]\nport = 1234\n")
    settings = Settings()
    assert (settings.server.port, settings.server.host) == (1234, "127.0.0.1")


def test_the_environment_beats_the_file_value_by_value(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_folder / "deputize.toml").write_text('[server]\nport = 1234\nhost = "::1"\n')
    monkeypatch.setenv("DEPUTIZE_SERVER__PORT", "4321")
    settings = Settings()
    assert (settings.server.port, settings.server.host) == (4321, "::1")


@pytest.mark.parametrize("text", ["[server]\nprot = 1\n", "[servr]\nport = 1\n", "port = 1\n", "[timing]\nlease = 5\n"])
def test_a_misspelt_key_in_the_file_is_refused(empty_folder: Path, text: str) -> None:
    (empty_folder / "deputize.toml").write_text(text)
    with pytest.raises(ValidationError, match="Extra inputs"):
        Settings()


def test_a_misspelt_key_of_a_section_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPUTIZE_SERVER__PROT", "1")
    with pytest.raises(ValidationError, match="Extra inputs"):
        Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SERVER__PORT", "70000"),
        ("TIMING__LEASE_SECONDS", "0"),
        ("TELEMETRY__TRACE_SAMPLE", "1.5"),
        ("DATABASE__BATCH_ROWS", "0"),
        ("APPROVALS__GROUPS", "[]"),
        ("APPROVALS__STEP_SECONDS", "[]"),
        ("APPROVALS__STEP_SECONDS", "[60, 60]"),
        ("APPROVALS__FRESH_SECONDS", "0"),
        ("IDENTITY__OPERATOR_FRESH_SECONDS", "301"),
        ("IDENTITY__OPERATOR_FRESH_SECONDS", "29"),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"DEPUTIZE_{name}", value)
    with pytest.raises(ValidationError):
        Settings()


def test_settings_do_not_show_the_databases_password() -> None:
    settings = Settings.model_validate({"database": {"url": "postgresql://u:hunter2@h/d"}})
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_settings_cannot_be_changed_once_read() -> None:
    with pytest.raises(ValidationError):
        Settings().__setattr__("folder", Path("/elsewhere"))


def test_every_setting_is_explained() -> None:
    sections = [field.annotation for field in Settings.model_fields.values()]
    models = [each for each in sections if isinstance(each, type) and issubclass(each, SettingsSection)]
    unexplained = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert len(models) == 19
    assert unexplained == []


def test_two_servers_of_one_tenant_cannot_have_one_name(empty_folder: Path) -> None:
    server = '[[servers]]\nname = "orders"\nurl = "https://orders.example/mcp"\n'
    (empty_folder / "deputize.toml").write_text(server + server)
    with pytest.raises(ValidationError, match="two servers have the name orders"):
        Settings()
    (empty_folder / "deputize.toml").write_text(server + server + 'tenant = "other"\n')
    assert [each.tenant for each in Settings().servers] == [None, "other"]


def test_a_program_is_not_given_tokens_that_are_made_for_one_call(empty_folder: Path) -> None:
    server = '[[servers]]\nname = "orders"\ncredential = "delegated"\naudience = "https://orders.example"\n'
    (empty_folder / "deputize.toml").write_text(server + 'command = ["orders"]\nsecret_env = "TOKEN"\n')
    with pytest.raises(ValidationError, match="gets its credential only when it starts"):
        Settings()
    (empty_folder / "deputize.toml").write_text(server + 'url = "https://orders.example/mcp"\n')
    assert Settings().servers[0].credential == "delegated"


@pytest.mark.parametrize(
    ("host", "why"),
    [("a.example:0", "1 to 65535"), ("a.example:65536", "1 to 65535"), ("..:443", "a host"), ("[:::]:443", "'::'")],
)
def test_a_host_of_a_sandbox_is_one_that_its_proxy_takes(host: str, why: str) -> None:
    said = {"name": "orders", "command": ("orders",)}
    assert McpServerSettings.model_validate({**said, "hosts": ("a.example:443", "[::1]:443")}).hosts
    with pytest.raises(ValidationError, match=why):
        McpServerSettings.model_validate({**said, "hosts": (host,)})


def test_a_program_runs_in_a_sandbox_unless_its_settings_say_otherwise() -> None:
    program, url = {"name": "orders", "command": ("orders",)}, {"name": "orders", "url": "https://orders.example/mcp"}
    assert McpServerSettings.model_validate(program).sandbox
    assert not McpServerSettings.model_validate({**program, "sandbox": False, "uid": 61_000}).sandbox
    for said, why in (
        ({**program, "uid": 61_000}, "remove uid, or set sandbox = false"),
        ({**program, "sandbox": False, "hosts": ("a.example:443",)}, "remove sandbox = false, or hosts"),
        ({**url, "sandbox": True}, "set command, or remove sandbox"),
        ({**url, "folders": ({"path": "data"},)}, "set command, or remove folders"),
    ):
        with pytest.raises(ValidationError, match=why):
            McpServerSettings.model_validate(said)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"url": "http://orders.example/mcp", "credential": "link"}, "https"),
        ({"command": ("orders",), "secret_env": "KEY", "credential": "link"}, "https"),
        ({"url": "https://orders.example/mcp", "credential": "link", "client_id": "us"}, "issuer"),
        ({"url": "https://orders.example/mcp", "credential": "link", "secret": "orders"}, "client_id"),
        ({"url": "https://orders.example/mcp", "credential": "client", "issuer": "https://a.example"}, "client_id"),
        ({"url": "https://orders.example/mcp", "issuer": "https://a.example"}, "need credential"),
    ],
)
def test_a_server_that_is_signed_in_to_says_all_that_is_needed_and_nothing_unsafe(said: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        McpServerSettings.model_validate({"name": "orders", **said})


@pytest.mark.parametrize(
    "host", ["orders.example", "93.184.215.14", "orders", "127.1", "[::ffff:8.8.8.8]", "[2606::1]"]
)
def test_the_credential_of_a_service_is_not_sent_to_others_without_tls(host: str) -> None:
    with pytest.raises(ValidationError, match="set url to the service's https URL"):
        make_service(url=f"http://{host}/v1")
    with pytest.raises(ValidationError, match="https"):
        make_service(url=f"http://{host}/v1", credential="delegated", audience="orders")
    assert make_service(url=f"https://{host}/v1").credential == "vault"
    assert make_service(url=f"http://{host}/v1", credential="none").credential == "none"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]", "10.0.0.7", "192.168.1.2", "[fd00::7]"]
)
def test_the_credential_of_a_service_may_cross_private_networks(host: str) -> None:
    assert make_service(url=f"http://{host}:8080/v1").credential == "vault"


def test_a_server_at_this_machine_or_over_https_can_be_linked() -> None:
    for url in ("https://orders.example/mcp", "http://127.0.0.1:9/mcp", "http://localhost:9/mcp"):
        assert McpServerSettings.model_validate({"name": "orders", "url": url, "credential": "link"}).client_id is None


_SOURCE = '[[consistency.sources]]\ntool = "{}"\nentity = "/input/id"\nvalue = "/output/balance"\n'
_RULE = '[[consistency]]\nname = "balance"\nresolution = "human"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_RULE + _SOURCE.format("crm.get"), "at least 2 items"),
        (_RULE + "".join(_SOURCE.format(f"crm.get{number}") for number in range(11)), "at most 10 items"),
        (_RULE + _SOURCE.format("crm.get") * 2, "two sources name the tool crm.get"),
        (_RULE + _SOURCE.format("crm") + _SOURCE.format("b.get"), "should match pattern"),
        (_RULE.replace("human", "guess") + _SOURCE.format("a.get") + _SOURCE.format("b.get"), "'authority'"),
        (_RULE + "within_seconds = 86401\n" + _SOURCE.format("a.get"), "less than or equal to 86400"),
        (_RULE + "tolerance = inf\n" + _SOURCE.format("a.get"), "finite number"),
        (_RULE + _SOURCE.format("a.get").replace("/input/id", "input.id"), "is not a JSON Pointer"),
        (_RULE + _SOURCE.format("a.get").replace("/input/id", "/id"), "has to begin with /input/ or /output/"),
        (_RULE + _SOURCE.format("a.get").replace("/output/balance", "/input/id"), "has to begin with /output,"),
    ],
)
def test_a_consistency_rule_that_cannot_work_is_refused(empty_folder: Path, text: str, reason: str) -> None:
    (empty_folder / "deputize.toml").write_text(text)
    with pytest.raises(ValidationError, match=reason):
        Settings()


def test_consistency_rules_have_names_of_their_own(empty_folder: Path) -> None:
    rule = _RULE + _SOURCE.format("a.get") + _SOURCE.format("b.get")
    (empty_folder / "deputize.toml").write_text(rule)
    assert [each.name for each in Settings().consistency] == ["balance"]
    (empty_folder / "deputize.toml").write_text(rule + rule)
    with pytest.raises(ValidationError, match="two rules have the name balance"):
        Settings()


SINK = {"name": "bus", "kind": "nats", "url": "nats://127.0.0.1:4222"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "https://127.0.0.1"}, "begins with nats or tls"),
        ({"kind": "webhook"}, "begins with http or https"),
        ({"kind": "webhook", "url": "https://user:pass@receiver.example"}, "no user or password"),
        ({"kind": "webhook", "url": "https://receiver.example", "name": "approvals"}, "the key of notifications"),
        ({"url": "nats://"}, "and a host"),
        ({"url": "nats://host:99999"}, "and a host"),
        ({"subject_prefix": "all.>"}, "pattern"),
        ({"stream": "a.b"}, "pattern"),
        ({"name": "Bus"}, "pattern"),
    ],
)
def test_an_event_sink_that_could_not_work_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as refusal:
        EventSinkSettings.model_validate({**SINK, **changes})
    assert "pass@" not in str(refusal.value)


def test_two_event_sinks_with_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="two sinks have the name bus"):
        EventSettings.model_validate({"sinks": [SINK, SINK]})


def test_grpc_carries_tokens_outside_this_machine_only_with_tls() -> None:
    assert GrpcSettings().port is None
    assert GrpcSettings(host="0.0.0.0").port is None  # off, so nothing listens
    for host in ("127.0.0.1", "::1", "localhost"):
        assert GrpcSettings(port=7072, host=host).certificate is None
    for host in ("0.0.0.0", "::", "10.0.0.5", "gateway.example.com"):
        with pytest.raises(ValidationError, match="would carry tokens without TLS"):
            GrpcSettings(port=7072, host=host)
        assert GrpcSettings(port=7072, host=host, behind_proxy=True).behind_proxy
        assert GrpcSettings(port=7072, host=host, certificate=Path("a.pem"), key=Path("a.key")).key == Path("a.key")
    with pytest.raises(ValidationError, match="set both certificate and key"):
        GrpcSettings(port=7072, certificate=Path("a.pem"))


@pytest.mark.parametrize(
    ("people", "console", "expected"),
    [
        (["https://a.example"], {"client_id": "deputize"}, "https://a.example"),
        (["https://a.example", "https://b.example"], {"client_id": "deputize"}, None),
        (["https://a.example"], {}, None),
        ([], {"client_id": "deputize"}, None),
    ],
)
def test_the_console_uses_the_only_issuer_for_people(
    people: list[str], console: dict[str, str], expected: str | None
) -> None:
    issuers = [{"issuer": each, "audience": "gateway", "tenant": "acme", "human": True} for each in people]
    issuers.append({"issuer": "https://machines.example", "audience": "gateway", "tenant": "acme"})
    settings = Settings.model_validate({"identity": {"issuers": issuers}, "console": console})
    assert settings.console.issuer == expected
