"""Somebody who writes policy: checks it, tries it on cases and on real calls, puts it in force, and asks why."""

import json
from pathlib import Path

import pytest

from tests.acceptance.cli.shell import Done, deputize, make_project

pytestmark = pytest.mark.requirement("GOV-2")

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
def project(desk: Path, request: pytest.FixtureRequest) -> Path:
    """A project of its own, with no gateway."""
    return make_project(desk / request.node.name[:40].rstrip("_"))


def policy(*words: str, folder: Path, **more: str) -> Done:
    return deputize("policy", *words, folder=folder, env=more)


def test_a_new_project_has_policies_that_pass_their_own_cases(project: Path) -> None:
    checked, tried = policy("check", folder=project), policy("test", folder=project)

    asking = "reversible-writes-ask, destructive-needs-human, critical-in-production-asks"
    assert (checked.code, checked.out.splitlines()) == (
        0,
        ["✓ 5 rules in policies/default.cedar, checked against 3 tools", f"  asks approvers: {asking}"],
    )
    assert (tried.code, tried.out) == (0, "✓ 5 cases from policies/tests/default.yaml hold\n")


@pytest.mark.requirement("GOV-3")
def test_who_would_be_asked_is_said_wherever_policies_are_looked_at(project: Path) -> None:
    (project / "policies" / "own.cedar").write_text(
        '@id("looked-at") @decision("ask")\n@approvers("oncall, leads") @quorum("2") @deadline("36h") @step_up("hwk")\n'
        'forbid (principal, action, resource == Tool::"hello.greet");\n'
    )
    people = "2 of oncall, then leads, within 36h, signed in with hwk"
    cases = project / "policies" / "tests" / "default.yaml"
    cases.write_text("cases:\n  - {name: greets, tool: hello.greet, expect: ask, approvers: [oncall, leads]}\n")

    checked, held = policy("check", folder=project), policy("test", folder=project)
    explained = policy("explain", "--tool", "hello.greet", folder=project)
    told = policy("explain", "--tool", "hello.greet", "--json", folder=project)
    cases.write_text("cases:\n  - {name: greets, tool: hello.greet, expect: ask, approvers: security}\n")
    failed = policy("test", folder=project)

    assert f"  asks {people}: looked-at" in checked.out.splitlines()
    assert f"  asks {people}: looked-at" in explained.out.splitlines()
    assert told.json["demands"] == [
        {"rule": "looked-at", "groups": ["oncall", "leads"], "quorum": 2, "deadline_seconds": 129_600, "step_up": "hwk"}
    ]
    assert (held.code, failed.code) == (0, 1)
    assert "expected ask of security, but the answer is ask" in failed.err
    assert f"asks {people}: looked-at" in failed.err
    assert "write approvers: [oncall, leads]" in failed.err


def test_mistakes_are_lines_an_editor_jumps_to(project: Path) -> None:
    (project / "policies" / "own.cedar").write_text(
        NO_BOTS
        + '\n@id("typo")\npermit (principal, action, resource) when { resource.efects == "read" };\n'
        + '\n@id("vain")\npermit (principal, action, resource == Tool::"hello.frget");\n\npermit (principal);\n'
    )

    done = policy("check", folder=project / "tools")
    told = policy("check", "--json", folder=project)

    assert done.code == told.code == 1
    lines = done.out.splitlines()
    assert [line.split(" ")[0] for line in lines] == [f"policies/own.cedar:{n}:" for n in (6, 12, 9)]
    assert "warning: vain can never speak: there is no Tool hello.frget" in lines[2]
    assert "✗ 2 mistakes: these policies could not take force" in done.err
    assert [each["line"] for each in told.json["errors"]] == [6, 12]
    assert policy("test", folder=project).code == 1


def test_files_can_be_checked_outside_a_project(desk: Path) -> None:
    (desk / "lone.cedar").write_text(NO_BOTS)

    done = policy("check", "lone.cedar", folder=desk)

    assert (done.code, done.out) == (0, "✓ 1 rule in lone.cedar, checked against 0 tools\n")
    assert policy("check", "nothing.cedar", folder=desk).code == 2


def test_a_case_that_fails_says_what_was_said_by_whom_and_what_to_do(project: Path) -> None:
    (project / "policies" / "bots.test.yaml").write_text(BOTS)

    failed = policy("test", folder=project)
    as_json = policy("test", "policies/bots.test.yaml", "--json", folder=project)
    (project / "draft.cedar").write_text(NO_BOTS)
    drafted = policy("test", "draft.cedar", "policies/bots.test.yaml", folder=project)

    assert failed.code == as_json.code == 1
    assert "✗ policies/bots.test.yaml:2: an agent may not write notes" in failed.err
    assert "expected deny by no-notes-for-bots, but the answer is allow" in failed.err
    assert "by trusted-reversible-writes (policies/default.cedar:9): A trusted caller" in failed.err
    assert "Write a forbid that speaks here, or narrow trusted-reversible-writes" in failed.err
    assert "✗ 1 of 6 cases does not hold" in failed.err
    assert as_json.json["cases"][0]["said"]["behavior"] == "allow"
    assert (drafted.code, drafted.out) == (0, "✓ 1 case from policies/bots.test.yaml holds\n")


def test_a_case_about_nothing_is_a_mistake_with_its_line(project: Path) -> None:
    (project / "policies" / "x.test.yaml").write_text(
        "cases:\n  - name: typo\n    tool: hello.gret\n    expect: allow\n"
    )

    done = policy("test", folder=project)

    assert done.code == 1
    assert "policies/x.test.yaml:2: typo: there is no tool hello.gret in this project; did you mean hello.greet?" in (
        done.out
    )


def test_a_call_that_nobody_made_is_explained(project: Path) -> None:
    words = ("--tool", "hello.remember", "--user", "ana", "--arguments", '{"text": "x"}', "--environment", "staging")
    done = policy("explain", *words, folder=project)
    wrong = policy("explain", *words, "--trust", "high", folder=project)

    assert done.code == 0
    assert done.out.startswith("hello.remember for ana: ask\n  by reversible-writes-ask (policies/default.cedar:18)")
    assert "if the caller's trust were trusted, not standard" in done.out
    assert (wrong.code, "--trust" in wrong.err) == (2, True)
    assert policy("explain", folder=project).code == 2


@pytest.mark.requirement("NEW-4")
def test_a_draft_is_tried_on_real_calls_put_in_force_and_explained(shop: Path) -> None:
    minted = deputize("token", "--agent", "bot", "--scope", "notes:write", folder=shop).out.strip()
    assert deputize("call", "hello.remember", "text=bot", "--token", minted, folder=shop).code == 0
    (shop / "policies" / "own.cedar").write_text(NO_BOTS)

    dry = policy("put", "--dry-run", folder=shop)
    tried = policy("backtest", "--since", "1h", "--json", folder=shop).json
    put = policy("put", folder=shop)
    refused = deputize("call", "hello.remember", "text=bot", "--token", minted, folder=shop)
    call_id = refused.err.split("deputize policy explain ")[1].split()[0]
    why = policy("explain", call_id, folder=shop)
    mine = policy("explain", call_id, folder=shop, DEPUTIZE_TOKEN=minted, DEPUTIZE_URL=_url(shop))
    shown = policy("show", folder=shop)
    reset = policy("reset", folder=shop)
    later = policy("explain", call_id, folder=shop)
    back = policy("put", "policies/default.cedar", folder=shop)

    assert (dry.code, "nothing was changed" in dry.out) == (0, True)
    assert "1 call would be answered otherwise: 0 looser, 1 stricter" in dry.err
    assert [(each["tool"], each["agents"], each["calls"]) for each in tried["changes"]] == [
        ("hello.remember", ["bot"], 1)
    ]
    assert put.out.startswith("✓ in force since policy epoch 2: policies/default.cedar, policies/own.cedar")
    assert "not allowed by no-notes-for-bots (policies/own.cedar:1): Agents may read notes" in refused.err
    assert why.out.startswith("hello.remember for bot for developer: deny\n  by no-notes-for-bots")
    assert "it read context.delegated = true" in why.out
    assert "if the caller called without an agent" in why.out
    assert (mine.code, "it read" in mine.out) == (0, False)
    assert "no-notes-for-bots" in shown.out
    assert "✓ in force since policy epoch 3: the default set" in reset.out
    assert "put in force again when the gateway starts" in reset.err
    assert "the policies have changed since; now the answer would be\n    allow by trusted-reversible" in later.out
    assert back.code == 0


def _url(folder: Path) -> str:
    return str(json.loads((folder / ".deputize" / "dev.json").read_text())["url"])
