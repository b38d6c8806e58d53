"""Check, test and explain policies without a gateway, on the files and tools of a project.

The tools of MCP servers come from servers.json or a running gateway (`exported_servers.py`), those of services from
their documents.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deputize.catalog.builtin_contracts import list_companions
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.core.contract.tools import ProjectTool, PythonTool
from deputize.core.display_text import to_display_text
from deputize.core.errors import PolicyInvalid
from deputize.core.mcp.servers import parse_mcp_target
from deputize.core.settings import Settings
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.approval_annotations import describe_requirements
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.checks.policy_cases import CaseInput, CaseResult, LocatedCase, read_cases
from deputize.govern.policy.checks.validate import PolicyFindings, validate_policies
from deputize.govern.policy.files import describe_read_error, read_files
from deputize.govern.policy.policy_parser import PolicyDiagnostic, PolicyFile, parse_with_diagnostics
from deputize.interfaces.cli.local.exported_servers import FetchServers, load_server_contracts
from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.interfaces.cli.local.service_import import load_service_contracts
from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit, exit_with_error, format_count, printer
from deputize.interfaces.cli.render.policy import show_failed_case, show_findings, show_requirements
from deputize.operations.admin.policy.rehearsal import InvalidCase, Rehearsal, collect_fact_types, collect_names


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyProject:
    """Policies and tools of a project; a folder without deputize.toml has no tools."""

    tenant: str
    files: tuple[PolicyFile, ...]
    contracts: tuple[Contract, ...]
    # The groups that approve where a rule names none.
    approvers: tuple[str, ...]
    unseen_servers: frozenset[str]
    # The tools that certainly run in no sandbox.
    unsandboxed: frozenset[str]


def check_policies(paths: Sequence[Path], fetch_servers: FetchServers) -> None:
    """Print the errors and warnings of policies; exit with 1 if they are invalid or about what does not exist."""
    project = _load_policy_project(paths, fetch_servers)
    findings = _find_issues(project).for_author()
    rules, _ = parse_with_diagnostics(project.files)
    requirements = [rule.requirement for rule in rules if rule.requires_approval]
    if printer.as_json:
        printer.json(
            {
                "files": [file.path for file in project.files],
                "rules": len(rules),
                "asking": describe_requirements(requirements, project.approvers),
                **_render_findings(findings),
            }
        )
    show_findings(_render_findings(findings))
    if findings.errors:
        printer.error(f"{format_count(len(findings.errors), 'error')}: the policies are invalid")
        raise CommandExit(EXIT_FAILED)
    is_custom = project.files != load_default_files()
    file_names = (
        ", ".join(file.path for file in project.files) if is_custom else "the default set, because no files are named"
    )
    printer.success(
        f"{format_count(len(rules), 'rule')} in {file_names}, checked against "
        f"{format_count(len(project.contracts), 'tool')}"
    )
    show_requirements(describe_requirements(requirements, project.approvers))


def run_cases(paths: Sequence[Path], fetch_servers: FetchServers) -> None:
    """Run test cases against policies; exit with 1 if one fails."""
    project = _load_policy_project([path for path in paths if path.suffix == ".cedar"], fetch_servers)
    cases = _read_case_files(
        [path for path in paths if path.suffix != ".cedar"] or list(_find_case_files(project.files))
    )
    rehearsal = _open_rehearsal(project)
    with printer.progress_bar("Testing the policies") as show_share:
        results: list[CaseResult | PolicyDiagnostic] = []
        for number, each in enumerate(cases, start=1):
            results.append(rehearsal.run_case(each) if isinstance(each, LocatedCase) else each)
            show_share(number / len(cases))
    case_results = [each for each in results if isinstance(each, CaseResult)]
    errors = [each for each in results if isinstance(each, PolicyDiagnostic)]
    pass_count = sum(each.has_passed for each in case_results)
    if printer.as_json:
        printer.json(
            {
                "cases": [each.to_json() for each in case_results],
                "mistakes": [each.to_json() for each in errors],
                "held": pass_count,
                "failed": len(results) - pass_count,
            }
        )
    for error in errors:
        printer.line(f"{error.file}:{error.line}: {error.message}")
    for case_result in case_results:
        if not case_result.has_passed:
            show_failed_case(case_result.to_json())
    if errors:
        printer.error(
            f"{format_count(len(errors), 'error')} in the test cases: fix them and run deputize policy test again"
        )
        raise CommandExit(EXIT_FAILED)
    _print_summary(len(results), pass_count, list(dict.fromkeys(each.file for each in cases)))


def _print_summary(case_count: int, pass_count: int, files: Sequence[str]) -> None:
    if pass_count == case_count:
        printer.success(f"{format_count(case_count, 'case')} from {', '.join(files)} passed")
        return
    printer.error(f"{case_count - pass_count} of {format_count(case_count, 'case')} failed")
    raise CommandExit(EXIT_FAILED)


def explain_case(case_fields: dict[str, Any], arguments: str, fetch_servers: FetchServers) -> dict[str, Any]:
    """Decide a hypothetical call by the policies of this project."""
    if arguments:
        try:
            case_fields["arguments"] = json.loads(arguments)
        except ValueError as error:
            exit_with_error(f"--arguments is not valid JSON ({error}): write it like '{{\"amount\": 5}}'.")
    try:
        case = CaseInput.model_validate(case_fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fix = ", for example 2026-11-15T09:00" if first["loc"][-1] == "time" else ""
        exit_with_error(f"--{first['loc'][-1]}: {first['msg'][:1].lower()}{first['msg'][1:]}{fix}.")
    project = _load_policy_project((), fetch_servers)
    try:
        return _open_rehearsal(project).explain(case)
    except InvalidCase as error:
        exit_with_error(f"This call cannot be evaluated: {error}.")


def read_policy_payload(paths: Sequence[Path]) -> list[dict[str, str]]:
    """Read the given files, or those the settings name, as the API takes them."""
    enter_project()
    files = _read_policy_files(paths) if paths else read_files(load_settings().policy.files)
    return [{"path": file.path, "text": file.text} for file in files]


def _load_policy_project(paths: Sequence[Path], fetch_servers: FetchServers) -> PolicyProject:
    has_settings = enter_project()
    settings = load_settings()
    project_tools = load_project(settings, Path.cwd(), admits_drafts=True) if has_settings else None
    for each in project_tools.refusals if project_tools else ():
        printer.warn(f"{each.what} is ignored, because it cannot be registered: {each.reasons[0]}")
    contracts = tuple(tool.contract for tool in project_tools.tools) if project_tools else ()
    sandboxed = {each.contract.full_name for each in project_tools.tools if _has_backend(each)} if project_tools else ()
    server_contracts = load_server_contracts(settings, Path.cwd(), contracts, Clock(), fetch_servers)
    service_contracts, service_warnings = load_service_contracts(settings)
    for warning in (*server_contracts.warnings, *service_warnings):
        printer.warn(to_display_text(warning, 500))
    files = _read_policy_files(paths) if paths else read_files(settings.policy.files)
    return PolicyProject(
        tenant=settings.tools.tenant,
        files=files or load_default_files(),
        contracts=(*contracts, *server_contracts.contracts, *service_contracts, *list_companions(*contracts)),
        approvers=settings.approvals.groups,
        unseen_servers=server_contracts.unseen_servers,
        unsandboxed=frozenset(
            each.full_name
            for each in (*contracts, *server_contracts.contracts, *service_contracts)
            if each.full_name not in sandboxed and _has_no_sandbox(each, settings)
        ),
    )


def _has_backend(tool: ProjectTool) -> bool:
    return isinstance(tool, PythonTool) and tool.backend is not None


def _has_no_sandbox(contract: Contract, settings: Settings) -> bool:
    """Tell whether calls of a tool certainly run in no sandbox, wherever the gateway is."""
    if contract.handler.driver == "mcp":
        name = parse_mcp_target(contract.handler.target).server
        server = next((each for each in settings.servers if each.name == name), None)
        return server is not None and not (server.command and server.sandbox)
    return contract.handler.driver in ("python", "http", "grpc")


def _read_policy_files(paths: Sequence[Path]) -> tuple[PolicyFile, ...]:
    for path in paths:
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            exit_with_error(f"{path} {what}: check the file name.")
    return read_files([str(path) for path in paths])


def _find_issues(project: PolicyProject) -> PolicyFindings:
    entity_names = collect_names(project.contracts, project.tenant) if project.contracts else None
    return validate_policies(
        project.files,
        collect_fact_types(project.contracts),
        known_names=entity_names,
        unseen_servers=project.unseen_servers,
    )


def _compile_policies(project: PolicyProject) -> CompiledPolicies:
    """Compile the policies; print the errors and exit if they are invalid."""
    findings = _find_issues(project)
    try:
        findings.raise_errors()
    except PolicyInvalid:
        if printer.as_json:
            printer.json(_render_findings(findings))
        show_findings(_render_findings(findings))
        printer.error(f"{format_count(len(findings.errors), 'error')}: the policies are invalid")
        raise CommandExit(EXIT_FAILED) from None
    return CompiledPolicies(project.files, collect_fact_types(project.contracts))


def _open_rehearsal(project: PolicyProject) -> Rehearsal:
    return Rehearsal(
        _compile_policies(project),
        project.contracts,
        project.tenant,
        approvers=project.approvers,
        placements=dict.fromkeys(project.unsandboxed, "none"),
    )


def _render_findings(findings: PolicyFindings) -> dict[str, Any]:
    return {
        "errors": [each.to_json() for each in findings.errors],
        "warnings": [each.to_json() for each in findings.warnings],
    }


def _find_case_files(files: Sequence[PolicyFile]) -> Iterator[Path]:
    """Find the test cases of policies: files in `tests/` beside them, or named `NAME.test.yaml`."""
    folders = [Path("policies")] if files == load_default_files() else [Path(file.path).parent for file in files]
    for folder in dict.fromkeys(folders):
        for pattern in ("tests/*.yaml", "tests/*.yml", "*.test.yaml", "*.test.yml"):
            yield from sorted(folder.glob(pattern))


def _read_case_files(paths: Sequence[Path]) -> list[LocatedCase | PolicyDiagnostic]:
    entries: list[LocatedCase | PolicyDiagnostic] = []
    for path in paths:
        here = Path.cwd()
        display_path = str(path.relative_to(here) if path.is_relative_to(here) else path)
        try:
            cases, errors = read_cases(display_path, path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            exit_with_error(f"{display_path} does not exist: check the file name.")
        except (OSError, UnicodeDecodeError) as error:
            exit_with_error(
                f"{display_path} cannot be read ({describe_read_error(error)}): make it a readable file in UTF-8."
            )
        entries += [*cases, *errors]
    if not entries:
        exit_with_error("There are no test cases: write some under cases: in policies/tests/NAME.yaml.")
    return entries
