"""Policies checked, tried and explained without a gateway: on the files and tools of a project."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deputize.core.clock import Clock
from deputize.core.contract import Contract
from deputize.core.errors import PolicyInvalid
from deputize.doors.cli.loading import load
from deputize.doors.cli.output import REFUSED, Stopped, counted, give_up, printer
from deputize.doors.cli.policy_shown import show_case, show_demands, show_findings
from deputize.doors.cli.project import enter_project, load_settings
from deputize.govern.policy.cases import Asking, Judged, Placed, read_cases
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.check import Findings
from deputize.govern.policy.check import check as find
from deputize.govern.policy.explain import smallest_change
from deputize.govern.policy.files import read_files, unreadable
from deputize.govern.policy.force import default_files
from deputize.govern.policy.rules import Mistake, PolicyFile, examine
from deputize.govern.policy.told import spoken
from deputize.govern.policy.wants import told as told_demands
from deputize.lifecycle.rehearse import NoSuchCase, Rehearsal, fact_types, names

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """What commands here work on; a folder that is no project has no tools."""

    tenant: str
    files: tuple[PolicyFile, ...]
    contracts: tuple[Contract, ...]
    # Who is asked where a rule names nobody.
    approvers: tuple[str, ...]


def check(paths: Sequence[Path]) -> None:
    project = _project(paths)
    found = _findings(project)
    rules, _ = examine(project.files)
    demands = [rule.demand for rule in rules if rule.asks]
    if printer.as_json:
        printer.json(
            {
                "files": [file.path for file in project.files],
                "rules": len(rules),
                "asking": told_demands(demands, project.approvers),
                **_told(found),
            }
        )
    show_findings(_told(found))
    if found.errors:
        printer.bad(f"{counted(len(found.errors), 'mistake')}: these policies could not take force")
        raise Stopped(REFUSED)
    own = project.files != default_files()
    named = ", ".join(file.path for file in project.files) if own else "the default set, for no files are named"
    printer.good(f"{counted(len(rules), 'rule')} in {named}, checked against {counted(len(project.contracts), 'tool')}")
    show_demands(told_demands(demands, project.approvers))


def try_cases(paths: Sequence[Path]) -> None:
    project = _project([path for path in paths if path.suffix == ".cedar"])
    cases = _cases([path for path in paths if path.suffix != ".cedar"] or list(_beside(project.files)))
    rehearsal = Rehearsal(_compiled(project), project.contracts, project.tenant, approvers=project.approvers)
    with printer.bar("trying the policies") as show_share:
        found: list[Judged | Mistake] = []
        for number, each in enumerate(cases, start=1):
            found.append(rehearsal.run(each) if isinstance(each, Placed) else each)
            show_share(number / len(cases))
    judged = [each for each in found if isinstance(each, Judged)]
    mistakes = [each for each in found if isinstance(each, Mistake)]
    held = sum(each.holds for each in judged)
    if printer.as_json:
        printer.json(
            {
                "cases": [each.to_json() for each in judged],
                "mistakes": [each.told() for each in mistakes],
                "held": held,
                "failed": len(found) - held,
            }
        )
    for mistake in mistakes:
        printer.line(f"{mistake.file}:{mistake.line}: {mistake.message}")
    for failed in judged:
        if not failed.holds:
            show_case(failed)
    if mistakes:
        printer.bad(f"{counted(len(mistakes), 'mistake')} in the cases; mend them and try again")
        raise Stopped(REFUSED)
    _summary(len(found), held, list(dict.fromkeys(each.file for each in cases)))


def _summary(cases: int, held: int, files: Sequence[str]) -> None:
    if held == cases:
        printer.good(f"{counted(cases, 'case')} from {', '.join(files)} {'holds' if cases == 1 else 'hold'}")
        return
    printer.bad(f"{cases - held} of {counted(cases, 'case')} {'does' if cases - held == 1 else 'do'} not hold")
    raise Stopped(REFUSED)


def explain(asking: dict[str, Any], arguments: str) -> dict[str, Any]:
    """A call that nobody made, answered by the policies of this project."""
    if arguments:
        try:
            asking["arguments"] = json.loads(arguments)
        except ValueError as error:
            give_up(f"--arguments is no JSON ({error}): write it like '{{\"amount\": 5}}'.")
    try:
        case = Asking.model_validate(asking)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fix = ", as in 2026-11-15T09:00" if first["loc"][-1] == "time" else ""
        give_up(f"--{first['loc'][-1]}: {first['msg'][:1].lower()}{first['msg'][1:]}{fix}.")
    project = _project(())
    policies = _compiled(project)
    try:
        asked = Rehearsal(policies, project.contracts, project.tenant).asked(case)
    except NoSuchCase as error:
        give_up(f"This call cannot be asked about: {error}.")
    verdict = policies.replay(asked)
    return {
        "tool": {"name": asked.tool["name"], "version": asked.tool["version"]},
        "principal": dict(asked.caller),
        "behavior": verdict.behavior,
        "reason": verdict.reason,
        "suggestion": verdict.suggestion,
        "errors": list(verdict.errors),
        "rules": spoken(policies, verdict, asked),
        "demands": told_demands(verdict.demands, project.approvers),
        "allowed_if": smallest_change(policies, asked),
    }


def chosen(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The files a person named, or those the settings name, ready to be sent."""
    enter_project()
    files = _read(paths) if paths else read_files(load_settings().policy.files)
    return [{"path": file.path, "text": file.text} for file in files]


def moment(text: str) -> str:
    """`30d` ago, or the date itself, as the API takes it."""
    number, unit = text[:-1], text[-1:]
    if unit in _UNITS and number.isdigit():
        with suppress(OverflowError):
            return (Clock().now() - timedelta(**{_UNITS[unit]: int(number)})).isoformat()
    with suppress(ValueError):
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).isoformat()
    give_up(f"{text} is no time to look back to: write 30d, 12h, 45m, or a date like 2026-11-01.")


def _project(paths: Sequence[Path]) -> Project:
    inside = enter_project()
    settings = load_settings()
    loaded = load(settings, Path.cwd()) if inside else None
    for each in loaded.refusals if loaded else ():
        printer.warn(f"{each.what} is left out: {each.reasons[0]}")
    files = _read(paths) if paths else read_files(settings.policy.files)
    return Project(
        tenant=settings.tools.tenant,
        files=files or default_files(),
        contracts=tuple(tool.contract for tool in loaded.tools) if loaded else (),
        approvers=settings.approvals.groups,
    )


def _read(paths: Sequence[Path]) -> tuple[PolicyFile, ...]:
    for path in paths:
        if not path.is_file():
            give_up(f"There is no file {path}: check the name.")
    return read_files([str(path) for path in paths])


def _findings(project: Project) -> Findings:
    known = names(project.contracts, project.tenant) if project.contracts else None
    return find(project.files, fact_types(project.contracts), known=known)


def _compiled(project: Project) -> CompiledPolicies:
    """What cannot take force is not tried either."""
    found = _findings(project)
    try:
        found.require()
    except PolicyInvalid:
        if printer.as_json:
            printer.json(_told(found))
        show_findings(_told(found))
        printer.bad(f"{counted(len(found.errors), 'mistake')}: these policies could not take force")
        raise Stopped(REFUSED) from None
    return CompiledPolicies(project.files, fact_types(project.contracts))


def _told(found: Findings) -> dict[str, Any]:
    return {
        "errors": [each.told() for each in found.errors],
        "warnings": [each.told() for each in found.warnings],
    }


def _beside(files: Sequence[PolicyFile]) -> Iterator[Path]:
    """The cases of policies lie in `tests/` beside them, or are called `NAME.test.yaml`."""
    folders = [Path("policies")] if files == default_files() else [Path(file.path).parent for file in files]
    for folder in dict.fromkeys(folders):
        for pattern in ("tests/*.yaml", "tests/*.yml", "*.test.yaml", "*.test.yml"):
            yield from sorted(folder.glob(pattern))


def _cases(paths: Sequence[Path]) -> list[Placed | Mistake]:
    found: list[Placed | Mistake] = []
    for path in paths:
        here = Path.cwd()
        shown = str(path.relative_to(here) if path.is_relative_to(here) else path)
        try:
            placed, mistakes = read_cases(shown, path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            give_up(f"There is no file {shown}: check the name.")
        except (OSError, UnicodeDecodeError) as error:
            give_up(f"The cases in {shown} cannot be read ({unreadable(error)}).")
        found += [*placed, *mistakes]
    if not found:
        give_up("There are no cases to try: write some under cases: in policies/tests/NAME.yaml.")
    return found
