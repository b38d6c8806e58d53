"""Results of contract tests in the registry: checked, signed, required for admission, and told when they turn red."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest
import pytest_asyncio

from deputize.core.settings import ApprovalSettings, Settings, ToolSettings, WebhookSettings
from deputize.core.settings.tools import ContractTestSettings, TrustedTester
from deputize.execute.egress import Egress
from deputize.operations.approvals.notifications.notifier import ApprovalNotifier
from deputize.testing.contract_test import ContractTest, ContractTestReport
from deputize.testing.gateway_calls import GatewayCaller
from deputize.testing.plan import ContractTestPlan, StateReader
from tests.integration.conftest import ADMIN, PUBLIC_URL, HttpGateway, serve_gateway
from tests.support import bank_tools
from tests.support.gateway_internals import get_runtime
from tests.support.webhook_receiver import WebhookReceiver, open_webhook_receiver

SCOPES = ("bank:write", ADMIN)
SHARED = ToolSettings(shared_with=("other",))
TRUSTED = TrustedTester(issuer=f"{PUBLIC_URL}/t/dev")
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.requirement("QUA-1")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with open_webhook_receiver() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bank")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bank(module_database: str, folder: Path, receiver: WebhookReceiver) -> AsyncIterator[HttpGateway]:
    """A staging gateway: nothing is required, and owners are notified."""
    notify = [{"group": "owners/bank", "url": receiver.url}]
    changes = {
        "tools": SHARED,
        "approvals": ApprovalSettings.model_validate({"notify": notify}),
        "webhooks": WebhookSettings(hosts=("127.0.0.1",)),
    }
    options = {"tools": bank_tools.TOOLS}
    async with serve_gateway(
        module_database, folder, change=lambda settings: settings.model_copy(update=changes), gateway_options=options
    ) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def strict_bank(bank: HttpGateway, module_database: str, folder: Path) -> AsyncIterator[HttpGateway]:
    """Another gateway on the same database, whose tenant `other` registers only what tenant `dev` has tested."""

    def change(settings: Settings) -> Settings:
        tests = ContractTestSettings(must_pass=True, max_age_seconds=3600, testers=(TRUSTED,))
        return settings.model_copy(update={"tools": SHARED.model_copy(update={"tests": tests})})

    options = {"tools": bank_tools.TOOLS}
    async with serve_gateway(module_database, folder, change=change, gateway_options=options) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _reset_bank() -> None:
    bank_tools.reset_bank()


async def run_test(bank: HttpGateway, name: str, *, token: str | None = None, **more: Any) -> ContractTestReport:
    caller = GatewayCaller(url=bank.url, token=token or bank.token("root", scopes=SCOPES))
    test = ContractTest(gateway=caller, tool=await asyncio.to_thread(caller.show_tool, name), **{"samples": 2, **more})
    results = await asyncio.to_thread(lambda: tuple(test.run()))
    return ContractTestReport(tool=test.tool, seed=0, results=results)


async def record(bank: HttpGateway, report: ContractTestReport, *, token: str | None = None, **changes: Any) -> Any:
    contract = report.tool.contract
    path = f"/v1/tools/{contract.full_name}/versions/{contract.version}/tests"
    return await bank.post(
        path, {"report": {**report.to_claim(), **changes}}, token=token or bank.token("root", scopes=SCOPES)
    )


async def test_a_passed_test_is_signed_listed_and_audited(bank: HttpGateway) -> None:
    report = await run_test(bank, "bank.get_accounts")
    answer = await record(bank, report)
    assert answer.status_code == 201, answer.text
    result = answer.json()
    assert (result["verdict"], result["failures"], result["digest"]) == ("passed", 0, report.tool.digest)
    keys = (await bank.http.get("/t/dev/jwks.json")).json()["keys"]
    claims = jwt.decode(result["attestation"], jwt.PyJWK(keys[0]), algorithms=["EdDSA"])
    assert (claims["tool"], claims["verdict"], claims["iss"]) == ("bank.get_accounts", "passed", f"{PUBLIC_URL}/t/dev")
    listed = (await bank.get("/v1/tools/bank.get_accounts/versions/0.1.0/tests")).json()["tests"]
    assert [each["id"] for each in listed] == [result["id"]]


async def test_an_attestation_is_not_an_access_token(bank: HttpGateway) -> None:
    attestation = (await record(bank, await run_test(bank, "bank.get_accounts"))).json()["attestation"]
    refused = await bank.get("/v1/tools", token=attestation)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (401, "token-malformed")


async def test_a_report_is_believed_only_as_far_as_its_calls_were_seen(bank: HttpGateway) -> None:
    report = await run_test(bank, "bank.get_accounts")
    unknown = {"verdict": "passed", "call_ids": ["01890000-0000-7000-8000-000000000000"]}
    for changes, expected in (
        ({"cases": [unknown]}, "not recorded here as yours"),
        ({"cases": [{"verdict": "passed"}]}, "nothing was tested"),
        ({"digest": f"sha256:{'0' * 64}"}, "another digest"),
    ):
        answer = await record(bank, report, **changes)
        assert answer.status_code == 400
        assert expected in answer.json()["error"]["message"]
    eva = bank.token("eva", scopes=SCOPES)
    assert "not recorded here as yours" in (await record(bank, report, token=eva)).json()["error"]["message"]
    assert (await record(bank, report, token=bank.token(scopes=("bank:write",)))).status_code == 403


async def test_admission_requires_a_passed_test_that_a_trusted_gateway_signed(
    bank: HttpGateway, strict_bank: HttpGateway
) -> None:
    admin = strict_bank.other_token("olga", scopes=(ADMIN,))
    contract = next(each.contract for each in bank_tools.TOOLS if each.contract.name == "get_accounts")
    untested = await strict_bank.post("/v1/tools", contract.model_dump(mode="json"), token=admin)
    assert (untested.status_code, untested.json()["error"]["slug"]) == (422, "not-admitted")
    (reason,) = untested.json()["error"]["details"]["reasons"]
    assert (reason["conjunct"], "were not run" in reason["reason"]) == ("contract_tests_passing", True)
    attestation = (await record(bank, await run_test(bank, "bank.get_accounts"))).json()["attestation"]
    path = "/v1/tools/bank.get_accounts/versions/0.1.0/tests"
    added = await strict_bank.post(path, {"attestation": attestation}, token=admin)
    assert added.status_code == 201, added.text
    admitted = await strict_bank.post("/v1/tools", contract.model_dump(mode="json"), token=admin)
    assert admitted.status_code == 201, admitted.text


async def test_an_attestation_is_not_accepted_for_another_tool_issuer_or_content(
    bank: HttpGateway, strict_bank: HttpGateway
) -> None:
    attestation = (await record(bank, await run_test(bank, "bank.get_accounts"))).json()["attestation"]
    admin = strict_bank.other_token("olga", scopes=(ADMIN,))
    head, body, signature = attestation.split(".")
    claims = json.loads(jwt.utils.base64url_decode(body))
    forged = jwt.utils.base64url_encode(orjson.dumps({**claims, "tool": "bank.quote"})).decode()
    stranger = jwt.utils.base64url_encode(orjson.dumps({**claims, "iss": "https://evil.example/t/dev"})).decode()
    for tool, text, expected in (
        ("bank.quote", attestation, "the attestation is of bank.get_accounts"),
        ("bank.quote", f"{head}.{forged}.{signature}", "its signature or form is invalid"),
        ("bank.get_accounts", f"{head}.{stranger}.{signature}", "is not trusted to test tools"),
        ("bank.get_accounts", strict_bank.token(), "its type is not"),
        ("bank.get_accounts", "nothing", "not a JSON Web Signature"),
    ):
        answer = await strict_bank.post(f"/v1/tools/{tool}/versions/0.1.0/tests", {"attestation": text}, token=admin)
        assert answer.status_code == 400
        assert expected in answer.json()["error"]["message"]
    here = await bank.post(
        "/v1/tools/bank.get_accounts/versions/0.1.0/tests", {"attestation": attestation}, token=bank.token(scopes=())
    )
    assert here.status_code == 403


async def test_a_failed_or_old_test_admits_nothing(bank: HttpGateway, strict_bank: HttpGateway) -> None:
    attestation = (await record(bank, await run_test(bank, "bank.quote", samples=1))).json()["attestation"]
    admin = strict_bank.other_token("olga", scopes=(ADMIN,))
    contract = next(each.contract for each in bank_tools.TOOLS if each.contract.name == "quote")
    path = f"/v1/tools/bank.quote/versions/{contract.version}/tests"
    assert (await strict_bank.post(path, {"attestation": attestation}, token=admin)).json()["verdict"] == "passed"
    assert strict_bank.in_process is not None
    runtime = get_runtime(strict_bank.in_process)
    for change, expected in (
        ("tested_at = tested_at - interval '2 hours'", "passed 0.1 days ago"),
        ("tested_at = now(), verdict = 'failed', failures = 1", "failed for this contract"),
        ("tested_at = now(), verdict = 'unchecked'", "could not try every case"),
    ):
        async with runtime.store.write_transaction() as connection:
            await connection.execute(f"update deputize.contract_tests set {change} where tenant = 'other'")
        answer = await strict_bank.post("/v1/tools", contract.model_dump(mode="json"), token=admin)
        assert answer.status_code == 422
        assert expected in answer.json()["error"]["message"]


async def test_the_owner_is_told_once_when_a_test_turns_red(bank: HttpGateway, receiver: WebhookReceiver) -> None:
    plan = ContractTestPlan(state=StateReader(tool="bank.get_accounts", measure="/balances"))
    report = await run_test(bank, "bank.leak", plan=plan, samples=1)
    for _ in range(2):
        assert (await record(bank, report)).json()["verdict"] == "failed"
    assert bank.in_process is not None
    egress = Egress(allow_hosts=frozenset({"127.0.0.1"}))
    notifier = ApprovalNotifier(get_runtime(bank.in_process), egress.send)
    assert await notifier.write_test_notifications() == 1
    assert await notifier.write_test_notifications() == 0
    await notifier.send_notifications()
    await egress.aclose()
    (request,) = receiver.requests
    event = orjson.loads(request.body)
    assert event["type"] == "deputize.contract_test.failed"
    assert (event["data"]["tool"], event["data"]["failures"]) == ("bank.leak", 1)
