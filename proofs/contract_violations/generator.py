"""Write a project of tools, honest ones and ones that violate their contracts, drawn by a seed.

What each tool is, is returned apart from the project; neither names nor places tell it. Nothing here is imported from
the product: the tools are text.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proofs.contract_violations.base_tools import BASE_TOOLS, BaseTool
from proofs.contract_violations.faults import FAULTS, ODDITIES, PAIRS, REFUSE, Fault
from proofs.contract_violations.kinds import ViolationKind
from proofs.contract_violations.module_source import HELPERS, MODULE

TOOL_COUNT, VIOLATION_COUNT = 40, 20
_EACH_KIND = 2
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FIRST_ITEM = "plum"
"""The item of the first call; tests use the one of the example."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """What a tool really is: the kind of its violation, or None if it is honest."""

    kind: ViolationKind | None
    base: str
    fault: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """The folder of a gateway's tools, their test plans, and the arguments that each is first called with."""

    tools: Path
    plans: Path
    state: Path
    first_calls: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: Path) -> "Project":
        project = cls(tools=folder / "tools", plans=folder / "contract-tests", state=folder / "state")
        for each in (project.tools, project.plans, project.state):
            each.mkdir(parents=True)
        return project


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolDraft:
    """A tool that is to be written: a base with a fault, or with an oddity."""

    base: BaseTool
    kind: ViolationKind | None
    fault: Fault


def draw_tools(rng: random.Random) -> list[ToolDraft]:
    """Draw the tools of one seed: every kind of violation at least twice, each pair of kind and tool at most once, and
    as many honest tools, every base among them.
    """
    pairs = rng.sample(PAIRS, len(PAIRS))
    first_pairs = [pair for kind in ViolationKind for pair in [each for each in pairs if each[0] is kind][:_EACH_KIND]]
    other_pairs = [pair for pair in pairs if pair not in first_pairs]
    violating_pairs = [*first_pairs, *other_pairs][:VIOLATION_COUNT]
    drafts = [ToolDraft(base=base, kind=kind, fault=rng.choice(FAULTS[kind])) for kind, base in violating_pairs]
    for number in range(TOOL_COUNT - VIOLATION_COUNT):
        base = BASE_TOOLS[number % len(BASE_TOOLS)]
        drafts.append(ToolDraft(base=base, kind=None, fault=rng.choice(_list_oddities(base))))
    return rng.sample(drafts, len(drafts))


def draw_violations(rng: random.Random, kinds: Sequence[ViolationKind]) -> list[ToolDraft]:
    """Draw one violating tool for each fault of some kinds."""
    return [
        ToolDraft(base=rng.choice([base for each, base in PAIRS if each is kind]), kind=kind, fault=fault)
        for kind in kinds
        for fault in FAULTS[kind]
    ]


def write_tools(project: Project, drafts: Sequence[ToolDraft], rng: random.Random) -> dict[str, Label]:
    """Write the modules and test plans of tools, and return what each is."""
    labels = {}
    for draft in drafts:
        namespace = "w" + "".join(rng.choices(_LETTERS, k=12))
        name = f"{namespace}.{draft.base.name}"
        place = project.state / namespace
        (project.tools / f"{namespace}.py").write_text(render_module(draft, namespace, place))
        (project.plans / f"{name}.yaml").write_text(json.dumps(_build_plan(draft.base, namespace)))
        project.first_calls[name] = {"item": _FIRST_ITEM, "amount": rng.randint(4, 99)}
        labels[name] = Label(kind=draft.kind, base=draft.base.name, fault=draft.fault.text)
    return labels


def render_module(draft: ToolDraft, namespace: str, place: Path) -> str:
    """Render the source of one tool's module."""
    base = draft.base
    slots = {"pause": "", "refuse": REFUSE, "effect": base.effect, "trace": "", "result": base.result}
    slots[draft.fault.slot] = _fill_fault(draft.fault.text, slots)
    return MODULE.substitute(
        slots,
        namespace=namespace,
        place=repr(str(place)),
        storage=base.storage,
        helpers="" if base.is_read else HELPERS.substitute(namespace=namespace),
        options=base.options.replace("$namespace", namespace),
        name=base.name,
        description=base.description,
        answer=base.answer,
        new_value=base.new_value,
    )


def _fill_fault(text: str, slots: Mapping[str, str]) -> str:
    return text.replace("{effect}", slots["effect"]).replace("{result}", slots["result"])


def _list_oddities(base: BaseTool) -> list[Fault]:
    """List what a tool may do beside its work; only one that writes may store what it stored."""
    return [each for each in ODDITIES if not (base.is_read and "store_value" in each.text)]


def _build_plan(base: BaseTool, namespace: str) -> dict[str, Any]:
    if base.is_read:
        return {}
    plan: dict[str, Any] = {"state": {"tool": f"{namespace}.show"}}
    return {**plan, "undo": base.undo} if base.undo else plan
