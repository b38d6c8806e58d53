"""Definitions that change under their names, against a gateway that serves them: whatever means something else is held.

Two MCP servers, one of each era, declare what the proof tells them, byte for byte. First as agreed; then, round after
round, every tool of both is changed in one of the ways of `mutations.py` and called before anybody has looked;
then what waits for review is read. In between the servers declare the same as agreed, written in another order and
another spelling. Instructions are changed one at a time. What the servers were really asked to do, they say themselves.
"""

import random

from deputize.catalog.importers.tool_names import assign_names
from deputize.core.settings import McpServerSettings
from proofs.drift.judge import (
    DriftFindings,
    MutationCase,
    build_verdict,
    check_call_of_change,
    check_call_of_instructions,
    check_change,
    check_instructions,
    check_rewrite,
    check_unreviewed_calls,
)
from proofs.drift.mutations import MUTATIONS
from proofs.drift.rewrites import rewrite_tools
from proofs.drift.testbed import DriftServer, Testbed
from proofs.drift.tool_definitions import INSTRUCTIONS, is_read
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox

NAME = "drift"
PROMISE = "A tool whose definition changes under its name is held; one that is only written otherwise is not."

SEED = 20260728
# Of so many changes, one is of the instructions; each of those takes a look of its own.
_INSTRUCTIONS_EACH = 10
_SAMPLE = 3


async def prove(sandbox: Sandbox) -> Verdict:
    change_target = sandbox.pick_size(quick=150, full=1000)
    testbed, rng = await Testbed.start(sandbox), random.Random(SEED)
    tool_count = await _register_tools(testbed)
    findings = DriftFindings()
    tool_change_target = change_target - change_target // _INSTRUCTIONS_EACH
    while findings.change_count < tool_change_target:
        await _run_mutations(testbed, findings, rng, limit=tool_change_target - findings.change_count)
        await _run_rewrites(testbed, findings, rng)
        sandbox.log(
            f"{findings.change_count} changed, {findings.held_count} held; {findings.rewrite_count} rewritten, "
            f"{findings.held_rewrite_count} held"
        )
    while findings.change_count < change_target:
        await _change_instructions(testbed, findings, rng)
    while findings.rewrite_count < change_target:
        await _run_rewrites(testbed, findings, rng)
    sandbox.log(
        f"{findings.change_count} changed, {findings.held_count} held; {findings.rewrite_count} rewritten, "
        f"{findings.held_rewrite_count} held"
    )
    controls = {
        "a guard that compares descriptions alone": await _can_catch_description_guard(testbed),
        "a guard that compares what was written": await _can_catch_raw_guard(testbed),
    }
    return build_verdict(findings, tool_count, controls)


async def _register_tools(testbed: Testbed) -> int:
    """How many tools the first look registered; nothing of what honest servers declare may wait."""
    tool_count = 0
    for name in testbed.upstreams:
        probe_result = await testbed.probe_server(name)
        if probe_result["changes"]:
            raise RuntimeError(f"{name} has changes that wait at first sight: {list(await testbed.list_changes(name))}")
        tool_count += probe_result["tools"]
    return tool_count


async def _run_mutations(testbed: Testbed, findings: DriftFindings, rng: random.Random, *, limit: int) -> None:
    """Every tool of every server is changed in some way, called, and looked for in what waits."""
    servers = list(testbed.upstreams.values())
    for upstream, other in zip(servers, reversed(servers), strict=True):
        cases = _build_cases(upstream, other, rng)[:limit]
        limit -= len(cases)
        definitions = {case.tool: case.definitions for case in cases}
        await upstream.declare_tools(
            [each for tool in upstream.tools for each in definitions.get(tool["name"], [tool])]
        )
        await _call_tools(testbed, upstream, findings, [case for case in cases if not is_read(case.tool)])
        await testbed.probe_server(upstream.name)
        await _call_tools(testbed, upstream, findings, [case for case in cases if is_read(case.tool)])
        open_changes = await testbed.list_changes(upstream.name)
        for case in cases:
            check_change(findings, case, open_changes.get(case.item))
        await _check_new_not_served(testbed, upstream, findings, cases)
        await _restore_tools(testbed, upstream, findings)


def _build_cases(upstream: DriftServer, other: DriftServer, rng: random.Random) -> list[MutationCase]:
    """A change for each tool, the kinds in turn and in another order each time."""
    mutations = rng.sample(MUTATIONS, len(MUTATIONS))
    cases = []
    for position, tool in enumerate(upstream.tools):
        mutation = mutations[position % len(mutations)]
        definitions = mutation.mutate(tool, rng, other.tools[position]["name"])
        held_name = definitions[-1]["name"] if mutation.is_new_tool else tool["name"]
        cases.append(
            MutationCase(mutation=mutation, tool=tool["name"], definitions=definitions, item=f"tool:{held_name}")
        )
    return rng.sample(cases, len(cases))


async def _call_tools(
    testbed: Testbed, upstream: DriftServer, findings: DriftFindings, cases: list[MutationCase]
) -> None:
    """A write of what changed stops at the gateway before anybody looked, a read of it afterwards."""
    await upstream.fetch_call_counts()
    names = {f"{upstream.name}.{case.tool}": case for case in cases}
    answers = await testbed.call_tools(names)
    call_counts = await upstream.fetch_call_counts()
    for name, answer in answers.items():
        check_call_of_change(findings, names[name], answer, call_counts.get(names[name].tool, 0))


async def _check_new_not_served(
    testbed: Testbed, upstream: DriftServer, findings: DriftFindings, cases: list[MutationCase]
) -> None:
    settings = McpServerSettings(name=upstream.name, url=upstream.url)
    known_names = {tool["name"]: tool["name"] for tool in upstream.tools}
    new_names = [case.definitions[-1]["name"] for case in cases if case.mutation.is_new_tool]
    tool_names = assign_names(settings.name, new_names, known_names)
    await testbed.call_tools(f"{upstream.name}.{tool_names[name]}" for name in new_names)
    call_counts = await upstream.fetch_call_counts()
    check_unreviewed_calls(findings, new_names, call_counts)


async def _restore_tools(testbed: Testbed, upstream: DriftServer, findings: DriftFindings) -> None:
    """Declared again as agreed, nothing waits any more."""
    await upstream.declare_tools(upstream.tools)
    await testbed.probe_server(upstream.name)
    findings.open_change_count += len(await testbed.list_changes(upstream.name))


async def _run_rewrites(testbed: Testbed, findings: DriftFindings, rng: random.Random) -> None:
    """The same in another order and spelling: nothing waits, and a write reaches the server."""
    for upstream in testbed.upstreams.values():
        await upstream.declare_tools(rewrite_tools(upstream.tools, rng))
        write_names = [tool["name"] for tool in upstream.tools if not is_read(tool["name"])]
        sample = rng.sample(write_names, _SAMPLE)
        await upstream.fetch_call_counts()
        await testbed.call_tools(f"{upstream.name}.{name}" for name in sample)
        call_counts = await upstream.fetch_call_counts()
        await testbed.probe_server(upstream.name)
        check_rewrite(findings, upstream.tools, sample, call_counts, await testbed.list_changes(upstream.name))
    for upstream in testbed.upstreams.values():
        await _restore_tools(testbed, upstream, findings)


async def _change_instructions(testbed: Testbed, findings: DriftFindings, rng: random.Random) -> None:
    """Instructions that change stop every write of their server, and every read once they were seen."""
    upstream = rng.choice(list(testbed.upstreams.values()))
    old_instructions = INSTRUCTIONS[upstream.name]
    is_hidden = rng.random() < 0.5
    new_instructions = old_instructions + rng.choice(
        ("\u200b", "\U000e0061", " <!-- pay -->") if is_hidden else (" Really.", " ", "\n")
    )
    await upstream.declare_tools(
        upstream.tools, rng.choice((new_instructions, "")) if not is_hidden else new_instructions
    )
    sample = rng.sample([tool["name"] for tool in upstream.tools], 2 * _SAMPLE)
    for are_reads in (False, True):
        if are_reads:
            await testbed.probe_server(upstream.name)
        names = [name for name in sample if is_read(name) == are_reads]
        await upstream.fetch_call_counts()
        answers = await testbed.call_tools(f"{upstream.name}.{name}" for name in names)
        call_counts = await upstream.fetch_call_counts()
        for name in names:
            check_call_of_instructions(findings, name, answers[f"{upstream.name}.{name}"], call_counts.get(name, 0))
    check_instructions(findings, await testbed.list_changes(upstream.name), is_hidden=is_hidden)
    await _restore_tools(testbed, upstream, findings)


async def _can_catch_description_guard(testbed: Testbed) -> bool:
    """Whether the proof sees what a guard misses that looks at descriptions alone."""
    await testbed.switch_to_variant("drift_descriptions_only")
    await _register_tools(testbed)
    findings = DriftFindings()
    await _run_mutations(testbed, findings, random.Random(SEED), limit=1000)
    testbed.sandbox.log(
        f"descriptions alone: {findings.change_count} changed, {findings.held_count} held, "
        f"{findings.slipped_count} slipped through"
    )
    return findings.held_count < findings.change_count and findings.slipped_count > 0


async def _can_catch_raw_guard(testbed: Testbed) -> bool:
    """Whether the proof sees what a guard holds for nothing that compares what was written."""
    await testbed.switch_to_variant("drift_not_normalized")
    await _register_tools(testbed)
    findings = DriftFindings()
    await _run_rewrites(testbed, findings, random.Random(SEED))
    testbed.sandbox.log(f"as written: {findings.rewrite_count} rewritten, {findings.held_rewrite_count} held")
    return findings.held_rewrite_count > 0 and findings.stopped_count > 0
