"""Serve the routes of contract tests: record the result of a test, and list those of a version."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.contract.names import to_full_name
from deputize.core.errors import (
    MalformedRequest,
    ParseFailed,
    RequestTooLarge,
    ScopeMissing,
    ToolDisabled,
    ToolNotFound,
    ToolRequiresSetup,
    ToolRetired,
    UnsupportedMedia,
    VersionNotFound,
)
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.models import ContractTestBody
from deputize.interfaces.rest.openapi import describe_body, describe_problems
from deputize.operations.gateway import ContractTestClaim, ReportedCase

router = APIRouter(prefix="/v1/tools/{name}/versions/{version}/tests", tags=["administration"])

_VERSION_PROBLEMS = (ToolNotFound, VersionNotFound, ToolRetired, ToolDisabled, ToolRequiresSetup)


class ContractTestModel(BaseModel):
    id: UUID
    digest: str = Field(description="Digest of the tested contract.")
    verdict: Literal["passed", "failed", "unchecked"] = Field(
        description="`unchecked` if no case failed and some could not be tried."
    )
    cases: int
    failures: int
    tested_at: str
    attestation: str = Field(description="The result, signed by the gateway that was tested (JSON Web Signature).")


class ContractTestResult(ContractTestModel):
    name: str
    version: str


class ContractTestPage(BaseModel):
    tests: Annotated[list[ContractTestModel], Field(description="Newest first.")]


@router.post(
    "",
    summary="Record a contract test",
    status_code=201,
    response_model=ContractTestResult,
    responses=describe_problems(*_VERSION_PROBLEMS, ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing),
    openapi_extra=describe_body(ContractTestBody),
)
async def record_contract_test(
    request: Request, gateway: CurrentGateway, caller: CurrentCaller, name: str, version: str
) -> Response:
    """Record the result of a test: a report of calls that were made here with this token, which is checked and signed;
    or an attestation that a trusted gateway signed. Needs an administrator.
    """
    body = validate_body(ContractTestBody, await read_json_body(request, gateway))
    full_name = to_full_name(name)
    if body.attestation is not None and body.report is None:
        result = await gateway.contract_tests.record_attestation(caller, full_name, version, body.attestation)
    elif body.report is not None and body.attestation is None:
        claim = ContractTestClaim(
            digest=body.report.digest,
            seed=body.report.seed,
            cases=tuple(ReportedCase(verdict=each.verdict, call_ids=each.call_ids) for each in body.report.cases),
        )
        result = await gateway.contract_tests.record_report(caller, full_name, version, claim)
    else:
        raise MalformedRequest("send either a report or an attestation", details={"field": "report"})
    return make_json_response(result, status=201)


@router.get(
    "",
    summary="List the contract tests of a version",
    response_model=ContractTestPage,
    responses=describe_problems(*_VERSION_PROBLEMS),
)
async def list_contract_tests(gateway: CurrentGateway, caller: CurrentCaller, name: str, version: str) -> Response:
    """List the newest results of the tests of a version."""
    return make_json_response({"tests": await gateway.contract_tests.list_results(caller, to_full_name(name), version)})
