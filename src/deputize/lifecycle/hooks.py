"""Run hooks around a call, in the order of the settings. Before the effect they may tighten; after it they only add.

`before` runs between validate and authorize, so that its changes are what is authorized; if it fails, the call stops.
`after` and `failure` run before the reply is recorded; if they fail, the reply carries a warning. A call without hooks
costs one dictionary lookup.
"""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from deputize.catalog.coercion import get_json_type
from deputize.catalog.schemas import format_pointer
from deputize.catalog.validation_job import JobRunner
from deputize.core.bounded_dict import BoundedDict
from deputize.core.call import Mutation
from deputize.core.canonical import canonicalize
from deputize.core.clock import Clock
from deputize.core.decision import Behavior, Decision, Environment, MatchedRule, Verdict, build_approval_requirements
from deputize.core.errors import DeadlineExceeded, HookBlocked, Problem
from deputize.core.hooks import (
    Context,
    HookAnswer,
    HookCall,
    HookEffects,
    HookProblem,
    InvalidHookAnswer,
    LoadedHook,
    Message,
    Permission,
    Stop,
    Update,
    canonicalize_value,
    parse_hook_answers,
)
from deputize.core.patterns import matches_glob
from deputize.execute.hook_runner import HookFailure, HookRunner
from deputize.lifecycle.phases import Validated, Verified

# The least time for a hook after the effect, when the call has used up its own.
_MIN_HOOK_SECONDS = 1.0
_MAX_CACHED_TOOLS = 10_000


class Hooks:
    """The hooks of this gateway, matched once per tool."""

    def __init__(self, hooks: Sequence[LoadedHook], clock: Clock, environment: Environment) -> None:
        self._hooks = tuple(hooks)
        self._clock = clock
        self._environment = environment
        self._runner = HookRunner()
        # In a tuple, because None is cached too: most tools have no hooks.
        self._tool_hooks: BoundedDict[str, tuple[ToolHooks | None]] = BoundedDict(_MAX_CACHED_TOOLS)
        self.is_configured = bool(self._hooks)

    def close(self) -> None:
        self._runner.close()

    def list_matching(self, tool: str) -> tuple[LoadedHook, ...]:
        """List the hooks that run for a tool, in their order."""
        return tuple(hook for hook in self._hooks if matches_glob(tool, hook.tools))

    def find_tool_hooks(self, tool: str) -> "ToolHooks | None":
        """Find the hooks of a registered tool; None if it has none."""
        entry = self._tool_hooks.get(tool)
        if entry is None:
            matches = self.list_matching(tool)
            tool_hooks = ToolHooks(matches, self._runner, self._clock, self._environment) if matches else None
            entry = self._tool_hooks.put(tool, (tool_hooks,))
        return entry[0]


class ToolHooks:
    """The hooks of one tool."""

    def __init__(self, hooks: Sequence[LoadedHook], runner: HookRunner, clock: Clock, environment: Environment) -> None:
        self._before, self._after, self._failure = (
            tuple(hook for hook in hooks if hook.moment == moment) for moment in ("before", "after", "failure")
        )
        self._runner = runner
        self._clock = clock
        self._environment = environment

    def begin(self, validated: Validated) -> Validated:
        """Note that hooks run before the tool, if the tool has such hooks."""
        return replace(validated, runs_pre_hooks=True) if self._before else validated

    async def run_before(self, validated: Validated, token_decision: Decision, run_job: JobRunner) -> Validated:
        """Run the `before` hooks; return the changed call, or raise the refusal of the first hook that stops it.

        `token_decision` proves that the caller may use the tool at all: hooks run for no one else.
        """
        for hook in self._before:
            try:
                for answer in await self._run_with_deadline(hook, validated):
                    validated = await _apply_answer(hook, validated, answer, run_job)
            except Problem as problem:
                decision = replace(token_decision, rules=(*token_decision.rules, hook.source))
                raise problem.replace(decision=decision) from problem.__cause__
        return validated

    async def _run_with_deadline(self, hook: LoadedHook, validated: Validated) -> tuple[HookAnswer, ...]:
        seconds_left = validated.deadline.remaining_seconds(self._clock.monotonic())
        try:
            return await self._run_hook(hook, (self._build_hook_call(validated),), min(hook.seconds, seconds_left))
        except (HookFailure, InvalidHookAnswer) as error:
            if validated.deadline.remaining_seconds(self._clock.monotonic()) <= 0:
                raise DeadlineExceeded(
                    f"the deadline passed while the hook {hook.name} ran, so the tool was not executed"
                ) from error
            raise _build_block_error(
                hook, f"the hook {hook.name} failed, so the tool was not executed: {error}"
            ) from error

    async def run_after(self, verified: Verified) -> Verified:
        """Run the `after` or `failure` hooks of a dispatched call; they add to its reply and change nothing else."""
        validated, problem = verified.validated, verified.problem
        if verified.input_requests is not None:
            # There is no result yet: the hooks run with the call that brings one.
            return verified
        if problem is None:
            hooks, outcome = self._after, verified.payload
        else:
            hooks, outcome = self._failure, _build_hook_problem(problem)
        try:
            return (
                replace(
                    verified,
                    hook_effects=await self._collect_effects(hooks, validated, outcome),
                    ran_post_hooks=True,
                )
                if hooks
                else verified
            )
        except asyncio.CancelledError:
            # The outcome is known and must be recorded: `reply` hands it to the writer before it next waits, and the
            # cancellation is delivered there.
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
                task.cancel()
            return verified

    async def run_failure(self, validated: Validated, problem: Problem) -> Validated:
        """Run the `failure` hooks of a refused call; they add to its refusal."""
        if not self._failure:
            return validated
        effects = await self._collect_effects(self._failure, validated, _build_hook_problem(problem))
        return replace(validated, hook_effects=_merge_effects(validated.hook_effects, effects))

    async def _collect_effects(self, hooks: Sequence[LoadedHook], validated: Validated, outcome: Any) -> HookEffects:
        effects = HookEffects()
        for hook in hooks:
            seconds_left = max(validated.deadline.remaining_seconds(self._clock.monotonic()), _MIN_HOOK_SECONDS)
            hook_arguments = (self._build_hook_call(validated), copy.deepcopy(outcome))
            try:
                for answer in await self._run_hook(hook, hook_arguments, min(hook.seconds, seconds_left)):
                    effects = _merge_effects(effects, _build_effects(hook, answer))
            except (HookFailure, InvalidHookAnswer) as error:
                message = f"{hook.source} could not add to this reply: {error}"
                failure = HookEffects(actions=(f"{hook.source} failed",), messages=(message,), has_failure=True)
                effects = _merge_effects(effects, failure)
        return effects

    async def _run_hook(
        self, hook: LoadedHook, hook_arguments: tuple[Any, ...], seconds: float
    ) -> tuple[HookAnswer, ...]:
        return parse_hook_answers(await self._runner.run(hook, hook_arguments, seconds), hook.moment)

    def _build_hook_call(self, validated: Validated) -> HookCall:
        call, contract = validated.call, validated.contract
        return HookCall(
            call_id=call.call_id,
            tool=contract.full_name,
            version=contract.version,
            effects=contract.effects.value,
            arguments=copy.deepcopy(validated.call_input),
            tenant=call.tenant,
            user=call.caller.user,
            agents=call.caller.agents,
            session=call.session,
            environment=self._environment,
            dry_run=call.request.dry_run,
            input_responses=None if validated.input_round is None else copy.deepcopy(validated.input_round.responses),
        )


def tighten_verdict(verdict: Verdict, hook_effects: HookEffects) -> Verdict:
    """Combine the verdict with the hooks' opinions: as strict as the strictest of them, never less strict than before.

    Its rules are those that gave this answer; a milder one of the policies stays in their decision record.
    """
    for opinion in hook_effects.permissions:
        if opinion.behavior.strictness > verdict.behavior.strictness:
            verdict = replace(
                opinion, digest=verdict.digest, errors=verdict.errors, backend_demands=verdict.backend_demands
            )
        elif opinion.behavior is verdict.behavior:
            verdict = replace(
                verdict, rules=verdict.rules + opinion.rules, requirements=verdict.requirements + opinion.requirements
            )  # fmt: skip
    return verdict


async def _apply_answer(hook: LoadedHook, validated: Validated, answer: HookAnswer, run_job: JobRunner) -> Validated:
    match answer:
        case Stop(reason=reason):
            raise _build_block_error(hook, f"the hook {hook.name} stopped this call: {reason}", reason=reason)
        case Update():
            return await _apply_update(hook, validated, answer, run_job)
        case Permission(behavior="passthrough"):
            return validated
        case Permission(behavior=behavior, reason=reason):
            rules = (MatchedRule(id=hook.source, reason=reason),)
            opinion = Verdict(
                behavior=Behavior(behavior), rules=rules, digest="", source="hook", reason=reason,
                requirements=build_approval_requirements(rules) if behavior == "ask" else (),
            )  # fmt: skip
            effects = HookEffects(actions=(f"{hook.source} {behavior}",), permissions=(opinion,))
        case _:
            effects = _build_effects(hook, answer)
    return replace(validated, hook_effects=_merge_effects(validated.hook_effects, effects))


async def _apply_update(hook: LoadedHook, validated: Validated, update: Update, run_job: JobRunner) -> Validated:
    """Replace arguments and check them against the schema again. The arguments that the model sent stay recorded."""
    before, tool = validated.call_input, validated.tool
    # Copied through JSON, so that the hook shares no object with the call.
    new_arguments: dict[str, Any] = orjson.loads(canonicalize_value(update.arguments))[""]
    after = {name: value for name, value in {**before, **new_arguments}.items() if name not in update.drop}
    changes = [
        Mutation(
            path=format_pointer((name,)),
            source=hook.source,
            change=f"{_describe_type(before, name)}→{_describe_type(after, name)}",
        )
        for name in {**before, **after}
        if name not in before
        or name not in after
        or canonicalize_value(before[name]) != canonicalize_value(after[name])
    ]
    if not changes:
        return validated
    canonical = canonicalize(after)
    is_valid = await tool.input.check(after, canonical, run_job)
    if is_valid is False and tool.call_input is not tool.input:
        is_valid = await tool.call_input.check(after, canonical, run_job)
    if is_valid is None:
        raise _build_block_error(
            hook, f"the hook {hook.name} changed the arguments, and they take too long to check against the schema"
        )
    if not is_valid:
        errors = await tool.call_input.describe_errors(after, run_job)
        where = f": {errors[0]['path'] or '/'} {errors[0]['message']}" if errors else ""
        raise _build_block_error(
            hook,
            f"the hook {hook.name} changed the arguments, and they no longer match the schema{where}",
            errors=errors,
        )
    effects = HookEffects(actions=(f"{hook.source} update",))
    return replace(
        validated,
        call_input=after,
        mutations=validated.mutations + tuple(changes),
        hook_effects=_merge_effects(validated.hook_effects, effects),
    )


def _describe_type(arguments: dict[str, Any], name: str) -> str:
    return get_json_type(arguments[name]) if name in arguments else "absent"


def _build_effects(hook: LoadedHook, answer: HookAnswer) -> HookEffects:
    match answer:
        case Context(value=value):
            context = {"source": hook.source, "value": orjson.loads(canonicalize_value(value))[""]}
            return HookEffects(actions=(f"{hook.source} context",), context=(context,))
        case Message(text=text):
            return HookEffects(actions=(f"{hook.source} message",), messages=(f"{hook.source}: {text}",))
        case _:
            raise InvalidHookAnswer(f"{type(answer).__name__} adds nothing")


def _merge_effects(first: HookEffects, second: HookEffects) -> HookEffects:
    return HookEffects(
        actions=first.actions + second.actions,
        context=first.context + second.context,
        messages=first.messages + second.messages,
        permissions=first.permissions + second.permissions,
        has_failure=first.has_failure or second.has_failure,
    )


def _build_hook_problem(problem: Problem) -> HookProblem:
    spec = problem.spec
    return HookProblem(slug=spec.slug, code=spec.code.value, message=problem.message, retryable=spec.retryable)


def _build_block_error(hook: LoadedHook, sentence: str, **more: Any) -> HookBlocked:
    return HookBlocked(sentence, details={"hook": hook.name, "rule": hook.source, **more}, nothing_happened=True)
