"""A flow is admitted only if its steps fit together; each reason names the step, the field and what to write."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, product
from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deputize.catalog.flow_rules import check_flow, check_flow_tools
from deputize.core.contract.contract import Contract
from tests.support.contracts import make_contract
from tests.support.flows import make_flow

pytestmark = pytest.mark.requirement("RES-3")


def _tool(name: str, **changes: Any) -> Contract:
    fields: dict[str, Any] = {
        "namespace": "lab",
        "name": name,
        "input_schema": {"type": "object", "properties": {"tag": {"type": "string"}}, "required": ["tag"]},
        "output_schema": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "number": {"type": "integer"}, "maybe": {"type": "string"}},
            "required": ["text", "number"],
        },
        "examples": [],
    }
    return make_contract(**{**fields, **changes})


_UPDATE = {"resource": "lab.values", "op": "update", "scope": "*"}
_TOOLS = {
    each.full_name: each
    for each in (
        _tool("look"),
        _tool("open_look", output_schema={}),
        _tool("put", effects="write", resources=[_UPDATE], undo="lab.put"),
        # As one of somebody else's service, which nobody knows how to take back.
        _tool("post", effects="write", resources=[_UPDATE]),
        _tool("drop", effects="destructive", resources=[_UPDATE], undo="lab.put"),
        _tool("erase", effects="destructive", resources=[{"resource": "lab.values", "op": "delete", "scope": "*"}]),
        _tool("asking_erase", effects="destructive", requires_user_interaction=True),
        _tool("slow", timeout={"timeout_class": "long-running", "seconds": 200}),
    )
}


def _step(name: str, tool: str = "look", tag: str = "/input/tag", **fields: Any) -> dict[str, Any]:
    return {"name": name, "tool": f"lab.{tool}", "bind": {"tag": tag}, **fields}


_HUNDRED = {"over": "/input/tags", "max_items": 100}
_NINE_HUNDRED = [_step(f"s{number}", map=_HUNDRED) for number in range(9)]
_LOOP = {"until": "/steps/t/number > 3", "max_rounds": 100}
_LOOK = {"tool": "lab.look", "bind": {"tag": "/input/tag"}}


def _find_reasons(contract: Contract, **flows: Contract) -> list[str]:
    tools = {**_TOOLS, **{f"lab.{name}": each for name, each in flows.items()}, contract.full_name: contract}
    reasons = [*check_flow(contract), *check_flow_tools(contract, tools.get)]
    return [f"{each.path} {each.reason}" for each in reasons]


def test_a_flow_whose_steps_fit_is_admitted() -> None:
    assert not _find_reasons(
        make_flow(
            "sound",
            _step("first"),
            _step("second", tag="/steps/first/text", when="/steps/first/number > 3"),
            {"name": "both", "parallel": [_step("a", "open_look"), _step("b", "put", "/steps/first/text")]},
            _step("c", tag="/steps/a/anything"),
            _step("last", "erase"),
            effects="destructive",
        )
    )


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([_step("a", "nothing")], "/flow/steps/a/tool lab.nothing is not a callable tool"),
        ([_step("a"), _step("a")], "/flow/steps has two steps with the name a"),
        ([{"name": "a"}], "/flow/steps/a has neither tool nor parallel nor steps"),
        ([_step("a", otherwise=[_step("b")])], "/flow/steps/a/otherwise is set, but the step has no condition"),
        ([_step("a", when="/input/tag")], "/flow/steps/a/when is not of the form LEFT OPERATOR RIGHT, with one space"),
        ([_step("a", tag="/steps/b/text"), _step("b")], "but b is not a step before this one that it can use"),
        ([_step("a", tag="/steps/a/text")], "but a is not a step before this one that it can use"),
        ([_step("a", tag="/input/other")], "/flow/steps/a/bind/tag names /input/other, but nothing declares other"),
        ([_step("a", tag="/item")], "but there is no item here: it exists inside map"),
        ([_step("a"), _step("b", tag="/steps/a/number")], "which does not fit: it must be string, and can be integer"),
        ([_step("a"), _step("b", tag="/steps/a/maybe")], "which may be missing, but lab.look requires tag"),
        ([_step("a", when='/input/tag == "x"'), _step("b", tag="/steps/a/text")], "which may be missing"),
        ([{"name": "a", "tool": "lab.look"}], "/flow/steps/a/bind/tag is missing: lab.look requires tag"),
        ([{"name": "a", "tool": "lab.look", "constants": {"tag": 3}}], "/flow/steps/a/constants/tag comes from"),
        ([_step("a", bind={"tag": "/input/tag", "x": "/input/tag"})], "x is not an argument of lab.look"),
        (
            [_step("a", map={"over": "/input/tag", "max_items": 3})],
            "/flow/steps/a/map/over is /input/tag, which",
        ),
        ([_step("a", "erase"), _step("b", "put")], "which cannot be taken back, but b changes data after it"),
        ([_step("a", "post"), _step("b", "put")], "which cannot be taken back, but b changes data after it"),
        ([_step("a", "put"), _step("b", "drop"), _step("c", "post")], None),
        ([_step("a", "erase", map={"over": "/input/tags", "max_items": 2})], "cannot be taken back, but a, which is"),
        ([_step("a", join="first")], "/flow/steps/a/join is set, but no steps are parallel"),
        ([_step(f"s{number}") for number in range(100)], None),
        ([*_NINE_HUNDRED, _step("t", loop=_LOOP)], None),
        (
            [*_NINE_HUNDRED, _step("t", loop=_LOOP, fallback=[_LOOK])],
            "/flow/steps may make 1100 calls; the limit is 1000",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_step_and_the_field(steps: list[Any], reason: str | None) -> None:
    schema = {
        "type": "object",
        "properties": {"tag": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["tag", "tags"],
    }
    reasons = _find_reasons(make_flow("unsound", *steps, input_schema=schema, effects="destructive"))
    assert (not reasons) if reason is None else any(reason in each for each in reasons), reasons


def test_an_irreversible_step_that_a_person_decides_may_be_followed_by_changes() -> None:
    assert not _find_reasons(make_flow("gated", _step("a", "asking_erase"), _step("b", "put"), effects="destructive"))


def test_a_flow_is_as_irreversible_as_its_steps() -> None:
    posting, putting = make_flow("posting", _step("a", "post")), make_flow("putting", _step("a", "put"))
    steps = (_step("a", "posting"), _step("b", "put"))
    (reason,) = _find_reasons(make_flow("outer", *steps, timeout=72_000), posting=posting)
    assert reason == "/flow/steps/a/tool is lab.posting, which cannot be taken back, but b changes data after it"
    steps = (_step("a", "putting"), _step("b", "posting"))
    assert not _find_reasons(make_flow("outer", *steps, timeout=72_000), posting=posting, putting=putting)


def test_a_flow_declares_the_effects_of_its_steps() -> None:
    assert _find_reasons(make_flow("hiding", _step("a", "put"), effects="read", resources=[])) == [
        "/effects is read, but the flow calls lab.put, which is write"
    ]


def test_a_deadline_that_the_longest_way_cannot_keep_is_refused() -> None:
    parallel = {"name": "p", "parallel": [_step("a", "slow"), _step("b")]}
    assert not _find_reasons(make_flow("in_time", parallel, _step("c", "slow"), timeout=400))
    assert _find_reasons(make_flow("late", parallel, _step("c", "slow"), timeout=399)) == [
        "/timeout/seconds is 399 s, but its steps may take 400 s"
    ]


def test_flows_that_call_each_other_in_a_circle_are_refused() -> None:
    other = make_flow("other", _step("a", "circular"))
    assert _find_reasons(make_flow("circular", _step("a", "other")), other=other) == [
        "/flow/steps call the flow itself: lab.circular → lab.other → lab.circular"
    ]
    assert _find_reasons(make_flow("selfish", _step("a", "selfish"))) == [
        "/flow/steps call the flow itself: lab.selfish → lab.selfish"
    ]


def test_flows_inside_flows_are_at_most_ten_levels_deep() -> None:
    flows = {f"f{number}": make_flow(f"f{number}", _step("a", f"f{number + 1}")) for number in range(1, 10)}
    flows["f10"] = make_flow("f10", _step("a"))
    assert not _find_reasons(flows.pop("f1"), **flows)
    deeper = make_flow("f0", _step("a", "f1"))
    flows["f1"] = make_flow("f1", _step("a", "f2"))
    (reason,) = _find_reasons(deeper, **flows)
    assert reason == "/flow/steps are flows inside flows, 11 levels deep; the limit is 10"


def test_the_calls_of_flows_inside_flows_are_counted_together() -> None:
    def make_map(name: str, tool: str, items: int) -> Contract:
        return make_flow(name, _step("a", tool, map={"over": "/input/tags", "max_items": items}))

    def find_count(items: int) -> list[str]:
        return [each for each in _find_reasons(make_map("outer", "inner", items), inner=inner) if "calls" in each]

    inner = make_map("inner", "look", 30)
    assert find_count(32) == []
    assert find_count(33) == ["/flow/steps may make 1023 calls with those of the flows inside it; the limit is 1000"]


def test_the_result_must_be_what_the_contract_declares() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "integer"}}, "required": ["text", "more"]}
    assert _find_reasons(make_flow("wrong", _step("a"), output={"text": "/steps/a/text"}, output_schema=schema)) == [
        "/flow/output/more is missing: output_schema requires more",
        "/flow/output/text comes from /steps/a/text, which does not fit: it must be integer, and can be string",
    ]


_LEAVES: Final = ("look", "put", "erase")


@st.composite
def _draw_graph(draw: st.DrawFn, names: Iterator[str], depth: int = 2) -> list[dict[str, Any]]:
    """Steps inside each other; whose results they take is drawn later."""
    steps: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(("call", "parallel", "steps") if depth else ("call",)))
        step: dict[str, Any] = {"name": next(names)}
        if kind == "call":
            step |= {"tool": f"lab.{draw(st.sampled_from(_LEAVES))}", "bind": {"tag": "/input/tag"}}
            if draw(st.integers(0, 5)) == 0:
                step["map"] = {"over": "/input/tags", "max_items": 2}
        elif kind == "steps":
            step["steps"] = draw(_draw_graph(names, depth - 1))
        else:
            step["parallel"] = [
                {"name": next(names), "steps": draw(_draw_graph(names, depth - 1))} for _ in range(2)
            ]  # fmt: skip
            step["join"] = draw(st.sampled_from(("all", "first")))
        if draw(st.integers(0, 3)) == 0:
            step["when"] = '/input/tag == "x"'
            if draw(st.booleans()):
                step["otherwise"] = draw(_draw_graph(names, 0))
        steps.append(step)
    return steps


def _list_runs(steps: Sequence[Mapping[str, Any]]) -> set[tuple[str, ...]]:
    """List every order in which the calls of steps can be made, in the plainest way: try all of them."""
    runs: set[tuple[str, ...]] = {()}
    for step in steps:
        runs = {before + own for before in runs for own in _list_runs_of_step(step)}
    return runs


def _list_runs_of_step(step: Mapping[str, Any]) -> set[tuple[str, ...]]:
    if "tool" in step:
        runs = {(step["name"],) * (2 if "map" in step else 1)}
    elif "steps" in step:
        runs = _list_runs(step["steps"])
    else:
        branches = [_list_runs_of_step(each) for each in step["parallel"]]
        if step["join"] == "first":
            # Of the one that was slower, any beginning may have run.
            begun = [{run[:end] for run in branch for end in range(len(run) + 1)} for branch in branches]
            pairs = {*product(branches[0], begun[1]), *product(begun[0], branches[1])}
        else:
            pairs = set(product(branches[0], branches[1]))
        runs = {run for pair in pairs for run in _interleave(*pair)}
    return runs | _list_runs(step.get("otherwise", ())) if "when" in step else runs


def _interleave(a: tuple[str, ...], b: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not a or not b:
        yield a + b
        return
    yield from ((a[0], *rest) for rest in _interleave(a[1:], b))
    yield from ((b[0], *rest) for rest in _interleave(a, b[1:]))


def _walk(steps: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield step
        for kind in ("steps", "parallel", "otherwise"):
            yield from _walk(step.get(kind, ()))


@given(data=st.data())
def test_a_graph_is_refused_if_and_only_if_one_of_its_runs_would_go_wrong(data: st.DataObject) -> None:
    steps = data.draw(_draw_graph(f"s{number}" for number in count()))
    calls = {each["name"]: each for each in _walk(steps) if "tool" in each}
    assume(len(calls) <= 6)
    sources: dict[str, str] = {}
    for name in calls:
        source = data.draw(st.sampled_from([None, *(each for each in calls if "map" not in calls[each])]), label=name)
        if source is not None:
            sources[name] = source
            calls[name]["bind"] = {"tag": f"/steps/{source}/text"}
    runs = _list_runs(steps)
    changes = {name for name, each in calls.items() if each["tool"] != "lab.look"}
    final = {name for name, each in calls.items() if each["tool"] == "lab.erase"}
    changes_too_late = any(
        name in final and not changes.isdisjoint(run[place + 1 :]) for run in runs for place, name in enumerate(run)
    )
    misses_a_value = any(
        name in sources and sources[name] not in run[:place] for run in runs for place, name in enumerate(run)
    )
    schema = {
        "type": "object",
        "properties": {"tag": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["tag", "tags"],
    }
    fields: dict[str, Any] = {"output": {"t": "/input/tag"}, "input_schema": schema, "effects": "destructive"}
    reasons = _find_reasons(make_flow("drawn", *steps, **fields))
    assert any("which cannot be taken back" in each for each in reasons) == changes_too_late, reasons
    missing = ("which may be missing", "is not a step before this one")
    assert any(text in each for each in reasons for text in missing) == misses_a_value, reasons
    assert bool(reasons) == (changes_too_late or misses_a_value), reasons
