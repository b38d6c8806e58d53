"""The judge of contract violations finds one planted fault of each category; generator and checkers share nothing."""

import random
from pathlib import Path

import pytest

from proofs.contract_violations.base_tools import BASE_TOOLS
from proofs.contract_violations.checker import DISABLED, ERROR_SCHEMA, NOT_REGISTERED, UNCHANGED, UNCHECKED, Observation
from proofs.contract_violations.faults import FAULTS, PAIRS
from proofs.contract_violations.generator import (
    TOOL_COUNT,
    VIOLATION_COUNT,
    Label,
    Project,
    ToolDraft,
    draw_tools,
    render_module,
    write_tools,
)
from proofs.contract_violations.import_check import CHECKER_FILES, GENERATOR_FILES, find_imports, find_shared_imports
from proofs.contract_violations.judge import FITTING_SIGNS, ViolationFindings, build_figures, judge_tools, list_notes
from proofs.contract_violations.kinds import ViolationKind
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

HONEST = Label(kind=None, base="get_stock", fault="")
SIZES = {"tools", "violating_tools", "violation_kinds", "kind_and_tool_pairs"}


def make_label(kind: ViolationKind) -> Label:
    return Label(kind=kind, base="get_stock", fault="pass")


def observe(*test_signs: str, call: tuple[str, ...] = ()) -> Observation:
    return Observation(test_signs=frozenset(test_signs), call_signs=frozenset(call), case_count=9)


def list_missed(label: Label, observation: Observation | None) -> set[str]:
    findings = ViolationFindings()
    judge_tools(findings, {"a.tool": label}, {} if observation is None else {"a.tool": observation})
    return list_missed_bars("contract_violations", build_figures(findings)) - SIZES


CASES: list[tuple[Label, Observation | None, set[str]]] = [
    (HONEST, observe(), set()),
    (HONEST, None, {"honest_tools_quarantined"}),
    (HONEST, Observation(), {"honest_tools_quarantined"}),
    (HONEST, observe(NOT_REGISTERED), {"honest_tools_quarantined"}),
    (HONEST, observe(UNCHECKED), {"honest_tools_quarantined"}),
    (HONEST, observe("not deterministic"), {"honest_tools_quarantined"}),
    (HONEST, observe(call=(UNCHANGED,)), {"honest_tools_quarantined"}),
    (HONEST, observe("tool-timeout", call=(DISABLED,)), {"honest_tools_quarantined"}),
    (HONEST, observe("tool-timeout"), {"honest_tools_timed_out"}),
    (make_label(ViolationKind.WRONG_OUTPUT), None, {"violations_missed"}),
    (make_label(ViolationKind.WRONG_OUTPUT), observe(), {"violations_missed"}),
    (make_label(ViolationKind.WRONG_OUTPUT), observe("result-invalid"), set()),
    (make_label(ViolationKind.WRONG_OUTPUT), observe(call=("result-invalid",)), set()),
    (make_label(ViolationKind.WRONG_OUTPUT), observe(UNCHECKED), {"violations_caught_only_by_another_check"}),
    (
        make_label(ViolationKind.READ_THAT_WRITES),
        observe("mutation-class-violated"),
        {"violations_caught_only_by_another_check"},
    ),
    (make_label(ViolationKind.READ_THAT_WRITES), observe("mutation-class-violated", call=(DISABLED,)), set()),
    (make_label(ViolationKind.WRONG_ERROR), observe("tool-failed"), {"violations_caught_only_by_another_check"}),
    (make_label(ViolationKind.WRONG_ERROR), observe("tool-failed", ERROR_SCHEMA), set()),
    (make_label(ViolationKind.TOO_SLOW), observe("outcome-unknown"), set()),
]


@pytest.mark.parametrize(("label", "observation", "missed"), CASES)
def test_a_fault_is_found_in_its_category(label: Label, observation: Observation | None, missed: set[str]) -> None:
    assert list_missed(label, observation) == missed


def test_every_exact_bar_has_a_planted_fault() -> None:
    figures = build_figures(ViolationFindings())
    assert list_exact_bars("contract_violations", among=figures) == set().union(*(missed for *_, missed in CASES))


@pytest.mark.parametrize("kind", ViolationKind)
def test_the_signs_of_each_kind_do_not_show_another(kind: ViolationKind) -> None:
    for sign_set in FITTING_SIGNS[kind]:
        shown = {other for other in ViolationKind if not list_missed(make_label(other), observe(*sign_set))}
        assert shown == {kind}


def test_where_violations_were_caught_is_counted() -> None:
    findings = ViolationFindings()
    labels = {name: make_label(ViolationKind.WRONG_OUTPUT) for name in ("a.red", "a.late", "a.lost")}
    observations = {"a.red": observe("result-invalid"), "a.late": observe(call=("result-invalid",))}
    judge_tools(findings, labels, observations)
    assert (findings.caught_by_test, findings.caught_at_first_call) == (1, 1)
    notes = list_notes(findings, limit=5)
    assert notes[0] == "wrong output: 2 by result-invalid"
    assert "a.lost" in notes[1]


@pytest.mark.parametrize("seed", range(20))
def test_half_of_the_tools_violate_their_contracts_in_every_way(seed: int) -> None:
    drafts = draw_tools(random.Random(seed))
    pairs = [(each.kind, each.base.name) for each in drafts if each.kind is not None]
    assert (len(drafts), len(pairs)) == (TOOL_COUNT, VIOLATION_COUNT)
    assert len(set(pairs)) == len(pairs)
    assert {kind for kind, _ in pairs} == set(ViolationKind)
    assert {each.base.name for each in drafts if each.kind is None} == {each.name for each in BASE_TOOLS}


def test_every_fault_changes_a_module_that_compiles() -> None:
    for kind, base in PAIRS:
        honest = ToolDraft(base=base, kind=None, fault=FAULTS[ViolationKind.WRONG_OUTPUT][0])
        sources = [
            render_module(ToolDraft(base=base, kind=kind, fault=fault), "wabc", Path("/state"))
            for fault in FAULTS[kind]
        ]
        assert len(set(sources)) == len(sources), (kind, base.name)
        for source in (*sources, render_module(honest, "wabc", Path("/state"))):
            compile(source, base.name, "exec")


def test_a_seed_makes_the_same_tools_again_and_their_names_tell_nothing(tmp_path: Path) -> None:
    def write(folder: str, seed: int) -> tuple[Project, dict[str, Label]]:
        project, rng = Project.create(tmp_path / folder), random.Random(seed)
        return project, write_tools(project, draw_tools(rng), rng)

    (first, labels), (again, same_labels), (_, other_labels) = write("a", 1), write("b", 1), write("c", 2)
    assert (labels, first.first_calls) == (same_labels, again.first_calls)
    assert not labels.keys() & other_labels.keys()
    assert labels.keys() == first.first_calls.keys()
    for name, label in labels.items():
        namespace, _, tool = name.partition(".")
        assert (tool, len(namespace), namespace.isalpha()) == (label.base, 13, True)


def test_the_checkers_and_the_generator_share_nothing() -> None:
    assert len(CHECKER_FILES) > 50
    assert all(file.is_file() for file in (*CHECKER_FILES, *GENERATOR_FILES))
    assert find_shared_imports() == []
    product = sorted(Path(__file__).parents[3].joinpath("src").rglob("*.py"))
    assert len(product) > 300
    assert find_imports(product, ("proofs", "tests")) == []


@pytest.mark.parametrize(
    "text",
    [
        "from proofs.contract_violations.generator import Label",
        "from proofs.contract_violations import generator",
        "from proofs import contract_violations",
        "import proofs.contract_violations.generator as other",
        "from .generator import Label",
        "from . import generator",
        "def check():\n    import proofs",
    ],
)
def test_an_import_is_found_wherever_it_stands(tmp_path: Path, text: str) -> None:
    file = tmp_path / "checker.py"
    file.write_text(f"import os\nimport proofsheet\n{text}\n")
    assert len(find_imports([file], ("proofs",))) == 1
