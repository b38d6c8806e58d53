"""Write policies as an administrator does: check, test, backtest, activate and explain them."""

import json
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import CompletedCommand, make_project, run_as_operator, run_deputize

pytestmark = [pytest.mark.requirement("GOV-2"), pytest.mark.nightly]

NO_BOTS = """@id("no-notes-for-bots")
@reason("Agents may read notes, not write them.")
forbid (principal, action == Action::"call", resource == Tool::"hello.remember")
when { context.delegated };
"""
BOTS = """cases:
  - name: an agent may not write notes
    caller: {user: ana, trust: trusted, agents: bot}
    tool: hello.remember
    arguments: {text: milk}
    environment: development
    expect: deny
    by: no-notes-for-bots
"""


@pytest.fixture
def project(workspace: Path, request: pytest.FixtureRequest) -> Path:
    """A project of its own, with no gateway."""
    return make_project(workspace / request.node.name[:40].rstrip("_"))


def run_policy_command(*words: str, folder: Path, **more: str) -> CompletedCommand:
    return run_deputize("policy", *words, folder=folder, env=more)


def test_a_new_project_has_policies_that_pass_their_own_cases(project: Path) -> None:
    checked, tried = run_policy_command("check", folder=project), run_policy_command("test", folder=project)

    asking = "reversible-writes-ask, destructive-needs-human, critical-in-production-asks"
    assert (checked.code, checked.out.splitlines()) == (
        0,
        ["✓ 5 rules in policies/default.cedar, checked against 3 tools", f"  approval by approvers: {asking}"],
    )
    assert (tried.code, tried.out) == (0, "✓ 5 cases from policies/tests/default.yaml passed\n")


@pytest.mark.requirement("GOV-3")
def test_every_policy_view_names_the_approvers(project: Path) -> None:
    (project / "policies" / "own.cedar").write_text(
        '@id("looked-at") @decision("ask")\n@approvers("oncall, leads") @quorum("2") @deadline("36h") @step_up("hwk")\n'
        'forbid (principal, action, resource == Tool::"hello.greet");\n'
    )
    people = "2 of oncall, then leads, within 36h, signed in with hwk"
    cases = project / "policies" / "tests" / "default.yaml"
    cases.write_text("cases:\n  - {name: greets, tool: hello.greet, expect: ask, approvers: [oncall, leads]}\n")

    checked, held = run_policy_command("check", folder=project), run_policy_command("test", folder=project)
    explained = run_policy_command("explain", "--tool", "hello.greet", folder=project)
    as_json = run_policy_command("explain", "--tool", "hello.greet", "--json", folder=project)
    cases.write_text("cases:\n  - {name: greets, tool: hello.greet, expect: ask, approvers: security}\n")
    failed = run_policy_command("test", folder=project)

    assert f"  approval by {people}: looked-at" in checked.out.splitlines()
    assert f"  approval by {people}: looked-at" in explained.out.splitlines()
    assert as_json.json["demands"] == [
        {"rule": "looked-at", "groups": ["oncall", "leads"], "quorum": 2, "deadline_seconds": 129_600, "step_up": "hwk"}
    ]
    assert (held.code, failed.code) == (0, 1)
    assert "expected ask of security, got ask" in failed.err
    assert f"approval by {people}: looked-at" in failed.err
    assert "expect approvers: [oncall, leads]" in failed.err


def test_mistakes_are_lines_an_editor_jumps_to(project: Path) -> None:
    (project / "policies" / "own.cedar").write_text(
        NO_BOTS
        + '\n@id("typo")\npermit (principal, action, resource) when { resource.efects == "read" };\n'
        + '\n@id("vain")\npermit (principal, action, resource == Tool::"hello.frget");\n\npermit (principal);\n'
    )

    done = run_policy_command("check", folder=project / "tools")
    as_json = run_policy_command("check", "--json", folder=project)

    assert done.code == as_json.code == 1
    lines = done.out.splitlines()
    assert [line.split(" ")[0] for line in lines] == [f"policies/own.cedar:{n}:" for n in (6, 9, 12)]
    assert "rule vain never matches: unknown tool hello.frget" in lines[1]
    assert "✗ 3 errors: the policies are invalid" in done.err
    assert [each["line"] for each in as_json.json["errors"]] == [6, 9, 12]
    assert run_policy_command("test", folder=project).code == 1


def test_files_can_be_checked_outside_a_project(workspace: Path) -> None:
    (workspace / "lone.cedar").write_text(NO_BOTS)

    done = run_policy_command("check", "lone.cedar", folder=workspace)

    assert (done.code, done.out) == (0, "✓ 1 rule in lone.cedar, checked against 0 tools\n")
    assert run_policy_command("check", "nothing.cedar", folder=workspace).code == 2


def test_a_case_that_fails_says_what_was_said_by_whom_and_what_to_do(project: Path) -> None:
    (project / "policies" / "bots.test.yaml").write_text(BOTS)

    failed = run_policy_command("test", folder=project)
    as_json = run_policy_command("test", "policies/bots.test.yaml", "--json", folder=project)
    (project / "draft.cedar").write_text(NO_BOTS)
    drafted = run_policy_command("test", "draft.cedar", "policies/bots.test.yaml", folder=project)

    assert failed.code == as_json.code == 1
    assert "✗ policies/bots.test.yaml:2: an agent may not write notes" in failed.err
    assert "expected deny by no-notes-for-bots, got allow" in failed.err
    assert "by trusted-reversible-writes (policies/default.cedar:9): Trusted callers" in failed.err
    assert "Write a forbid that matches, or narrow trusted-reversible-writes" in failed.err
    assert "✗ 1 of 6 cases failed" in failed.err
    assert as_json.json["cases"][0]["said"]["behavior"] == "allow"
    assert (drafted.code, drafted.out) == (0, "✓ 1 case from policies/bots.test.yaml passed\n")


def test_a_case_about_nothing_is_a_mistake_with_its_line(project: Path) -> None:
    (project / "policies" / "x.test.yaml").write_text(
        "cases:\n  - name: typo\n    tool: hello.gret\n    expect: allow\n"
    )

    done = run_policy_command("test", folder=project)

    assert done.code == 1
    assert "policies/x.test.yaml:2: typo: there is no tool hello.gret in this project; did you mean hello.greet?" in (
        done.out
    )


def test_a_hypothetical_call_is_explained(project: Path) -> None:
    words = ("--tool", "hello.remember", "--user", "ana", "--arguments", '{"text": "x"}', "--environment", "staging")
    done = run_policy_command("explain", *words, folder=project)
    wrong = run_policy_command("explain", *words, "--trust", "high", folder=project)

    assert done.code == 0
    assert done.out.startswith("hello.remember for ana: ask\n  by reversible-writes-ask (policies/default.cedar:18)")
    assert "if the caller's trust were trusted, not standard" in done.out
    assert (wrong.code, "--trust" in wrong.err) == (2, True)
    assert run_policy_command("explain", folder=project).code == 2


def test_a_demanded_sandbox_is_denied_to_a_function_without_a_gateway(project: Path) -> None:
    (project / "policies" / "own.cedar").write_text(
        '@id("all-on-gvisor") @backend("gvisor")\nforbid (principal, action, resource == Tool::"hello.greet");\n'
    )
    cases = project / "policies" / "tests" / "default.yaml"
    cases.write_text("cases:\n  - {name: greets, tool: hello.greet, expect: deny, by: all-on-gvisor}\n")

    held = run_policy_command("test", folder=project)
    explained = run_policy_command("explain", "--tool", "hello.greet", folder=project)

    assert held.code == 0, held.err
    lines = explained.out.splitlines()
    assert lines[0].endswith(": deny")
    reason = "it would run in no sandbox here, and the rule demands gvisor"
    assert lines[1] == f"  by all-on-gvisor (policies/own.cedar:1): {reason}"


@pytest.mark.requirement("NEW-4")
def test_a_draft_is_backtested_activated_and_explained(shop_project: Path) -> None:
    minted = run_deputize("token", "--agent", "bot", "--scope", "notes:write", folder=shop_project).out.strip()
    assert run_deputize("call", "hello.remember", "text=bot", "--token", minted, folder=shop_project).code == 0
    (shop_project / "policies" / "own.cedar").write_text(NO_BOTS)

    dry = run_policy_command("put", "--dry-run", folder=shop_project)
    tried = run_policy_command("backtest", "--since", "1h", "--json", folder=shop_project).json
    put = run_as_operator("policy", "put", folder=shop_project)
    refused = run_deputize("call", "hello.remember", "text=bot", "--token", minted, folder=shop_project)
    call_id = refused.err.split("deputize policy explain ")[1].split()[0]
    why = run_policy_command("explain", call_id, folder=shop_project)
    mine = run_policy_command(
        "explain", call_id, folder=shop_project, DEPUTIZE_TOKEN=minted, DEPUTIZE_URL=_read_gateway_url(shop_project)
    )
    shown = run_policy_command("show", folder=shop_project)
    reset = run_as_operator("policy", "reset", folder=shop_project)
    later = run_policy_command("explain", call_id, folder=shop_project)
    back = run_as_operator("policy", "put", "policies/default.cedar", folder=shop_project)

    assert (dry.code, "Nothing was changed." in dry.out) == (0, True)
    assert "1 call would be decided differently: 0 looser, 1 stricter" in dry.err
    assert [(each["tool"], each["agents"], each["calls"]) for each in tried["changes"]] == [
        ("hello.remember", ["bot"], 1)
    ]
    assert put.out.startswith("✓ Active since policy epoch 2: policies/default.cedar, policies/own.cedar")
    assert "not allowed by no-notes-for-bots: Agents may read notes" in refused.err
    assert why.out.startswith("hello.remember for bot for developer: deny\n  by no-notes-for-bots")
    assert "with context.delegated = true" in why.out
    assert "if the caller used no agent" in why.out
    assert (mine.code, "with context" in mine.out) == (0, False)
    assert "no-notes-for-bots" in shown.out
    assert "✓ Active since policy epoch 3: the default set" in reset.out
    assert "become active again when the gateway starts" in reset.err
    assert "The policies have changed since. The decision would now be:\n    allow by trusted-reversible" in later.out
    assert back.code == 0


def _read_gateway_url(folder: Path) -> str:
    return str(json.loads((folder / ".deputize" / "dev.json").read_text())["url"])
