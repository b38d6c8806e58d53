"""Define `deputize tool test` and `test-results`: test a tool by its contract, and see what was recorded."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from deputize.interfaces.cli.client.target import Token, Url, build_tool_path, find_gateway
from deputize.interfaces.cli.commands.tool import Name
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    EXIT_PENDING,
    CommandExit,
    Json,
    exit_with_error,
    format_count,
    printer,
)

if TYPE_CHECKING:
    from deputize.testing.contract_test import ContractTest, ContractTestReport

_MAX_SHOWN = 20


def run_contract_test(
    name: Name,
    version: Annotated[str | None, typer.Option(help="Version or range. Default: the latest.")] = None,
    against: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="URL of a staging gateway. Default: the running deputize dev of this project.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random cases; the same seed makes the same ones.")] = 0,
    samples: Annotated[int, typer.Option(min=1, max=500, help="How many random valid cases to make.")] = 10,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where test plans are read and failures are kept.")
    ] = Path("contract-tests"),
    record: Annotated[
        bool, typer.Option("--record", help="Sign the result and keep it in the registry. Needs an administrator.")
    ] = False,
    attestation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the signed result to this file. Implies --record.")
    ] = None,
    token: Token = "",
    json: Json = False,
) -> None:
    """Test a tool by its contract: cases from its schemas, and its declared behaviours. The calls have real effects.

    Arguments that the tool fails on are shrunk and kept in FOLDER/NAME.regressions.json, and tried in every later test.

    Exit codes: 0 every case held, 1 a case failed, 2 the command is wrong, 3 some cases could not be tried.
    """
    from deputize.testing.contract_test import CaseVerdict
    from deputize.testing.regressions import add_regressions

    test = _prepare_test(name, version, against, token, folder, seed, samples)
    report = _run_test(test)
    file = add_regressions(folder, test.contract.full_name, report.list_regressions())
    result = _record_report(test, report) if record or attestation is not None else None
    if attestation is not None and result is not None:
        attestation.write_text(result["attestation"] + "\n", encoding="ascii")
    if json:
        kept_file = None if file is None else str(file)
        printer.json({**report.to_json(), "regressions": kept_file, "recorded": result})
    _print_report(report)
    if file is not None:
        printer.note(f"  Kept as regressions in {file}; commit it with the tool.")
    if result is not None:
        printer.note(f"  Recorded as {result['verdict']} in the registry of {test.gateway.url}, signed.")
    if report.verdict is not CaseVerdict.PASSED:
        raise CommandExit(EXIT_FAILED if report.verdict is CaseVerdict.FAILED else EXIT_PENDING)


def _prepare_test(
    name: str, version: str | None, against: str, token: str, folder: Path, seed: int, samples: int
) -> "ContractTest":
    from deputize.testing.contract_test import ContractTest
    from deputize.testing.gateway_calls import GatewayCaller
    from deputize.testing.plan import load_plan
    from deputize.testing.regressions import load_regressions

    target = find_gateway(against, token)
    gateway = GatewayCaller(url=target.url, token=target.token)
    tool = gateway.show_tool(name, version)
    full_name = tool.contract.full_name
    return ContractTest(
        gateway=gateway,
        tool=tool,
        plan=load_plan(folder, full_name),
        regressions=tuple(load_regressions(folder, full_name)),
        seed=seed,
        samples=samples,
    )


def _run_test(test: "ContractTest") -> "ContractTestReport":
    from deputize.testing.contract_test import ContractTestReport

    with printer.spinner(f"Testing {test.contract.full_name} {test.contract.version} at {test.gateway.url}"):
        results = tuple(test.run())
    return ContractTestReport(tool=test.tool, seed=test.seed, results=results)


def _record_report(test: "ContractTest", report: "ContractTestReport") -> dict[str, Any]:
    contract = test.contract
    answer = test.gateway.record_report(contract.full_name, contract.version, report.to_claim())
    if answer.status != 201:
        exit_with_error(f"The result was not recorded: {answer.message}", EXIT_FAILED)
    return dict(answer.document)


def show_test_results(
    name: Name,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The exact version, for example 0.1.0.")],
    add: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add a signed result of another gateway, from a file.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List the recorded contract tests of a version, or add one that a trusted gateway signed."""
    gateway = find_gateway(url, token)
    path = f"{build_tool_path(name)}/versions/{quote(version, safe='')}/tests"
    if add is not None:
        answer = gateway.post(path, {"attestation": _read_attestation(add)}).value
        if json:
            printer.json(answer)
        printer.success(
            f"Added: {answer['name']} {answer['version']} {answer['verdict']}, tested {answer['tested_at']}"
        )
        return
    results = gateway.get(path)["tests"]
    if json:
        printer.json({"tests": results})
    elif not results:
        printer.line(f"No tests are recorded. Run deputize tool test {name} --record")
    else:
        rows = [
            (each["tested_at"], each["verdict"], str(each["cases"]), str(each["failures"]), each["digest"][:19])
            for each in results
        ]
        printer.table(("tested", "verdict", "cases", "failures", "digest"), rows)


def _read_attestation(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        exit_with_error(f"{file} cannot be read as a signed result: check the file name.")


def _print_report(report: "ContractTestReport") -> None:
    from deputize.testing.contract_test import CaseVerdict

    contract = report.tool.contract
    title = f"{contract.full_name} {contract.version}"
    failures, gaps = report.list_results(CaseVerdict.FAILED), report.list_results(CaseVerdict.UNCHECKED)
    count = format_count(len(report.list_results(CaseVerdict.PASSED)), "case")
    if report.verdict is CaseVerdict.PASSED:
        printer.success(f"{title}: {count} held ({_format_kinds(report)})")
    elif failures:
        printer.error(f"{title}: {format_count(len(failures), 'case')} failed, {count} held")
    else:
        printer.warn(f"{title}: {format_count(len(gaps), 'case')} could not be tried, {count} held")
    for each in failures[:_MAX_SHOWN]:
        printer.note(f"  {each.case.id} {each.case.arguments_json[:200]}")
        printer.note(f"    {each.reason}")
    for each in gaps[:_MAX_SHOWN]:
        printer.note(f"  {each.case.id} was not tried: {each.reason}")


def _format_kinds(report: "ContractTestReport") -> str:
    counts: dict[str, int] = {}
    for each in report.results:
        counts[each.case.kind] = counts.get(each.case.kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())
