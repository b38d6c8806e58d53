"""Hooks around a call, in the order of the settings. Before the effect they may tighten; after it they only add.

`before` runs between validate and authorize, so that what it changed is what is decided about; whatever goes wrong with
it stops the call. `after` and `failure` run before the reply is recorded; what goes wrong with them is a warning in it.
A call that no hook stands around pays for one look into a dictionary.
"""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import orjson

from deputize.catalog.coercion import type_name
from deputize.catalog.schemas import pointer
from deputize.core.call import Mutation
from deputize.core.clock import Clock
from deputize.core.decision import Behavior, Decision, Environment, Rule, Verdict, demanded
from deputize.core.errors import DeadlineExceeded, HookBlocked, Problem
from deputize.core.hooks import (
    Answer,
    Context,
    HookCall,
    Hooked,
    HookProblem,
    LoadedHook,
    Message,
    Nonsense,
    Permission,
    Stop,
    Update,
    answers_of,
    plain,
)
from deputize.execute.hooks import HookBroke, HookRunner
from deputize.lifecycle.phases import Validated, Verified

# What a hook after the effect may still take when the call has used up its time.
_LEAST_SECONDS = 1.0


class Hooks:
    """All hooks of this gateway; `around` finds those of one tool, worked out once."""

    def __init__(self, hooks: Sequence[LoadedHook], clock: Clock, environment: Environment) -> None:
        self._hooks = tuple(hooks)
        self._clock = clock
        self._environment = environment
        self._runner = HookRunner()
        self._around: dict[str, Around | None] = {}

    def close(self) -> None:
        self._runner.close()

    def around(self, tool: str) -> "Around | None":
        """None for a tool that no hook stands around. Only names of real tools are asked for, so it stays small."""
        if not self._hooks:
            return None
        try:
            return self._around[tool]
        except KeyError:
            matching = [hook for hook in self._hooks if fnmatchcase(tool, hook.tools)]
            found = Around(matching, self._runner, self._clock, self._environment) if matching else None
            self._around[tool] = found
            return found


class Around:
    """The hooks of one tool."""

    def __init__(self, hooks: Sequence[LoadedHook], runner: HookRunner, clock: Clock, environment: Environment) -> None:
        self._before, self._after, self._failure = (
            tuple(hook for hook in hooks if hook.moment == moment) for moment in ("before", "after", "failure")
        )
        self._runner = runner
        self._clock = clock
        self._environment = environment

    async def before(self, validated: Validated, by_token: Decision) -> Validated:
        """The call as the hooks leave it, or the refusal of the first that stops it. Whoever may not call the tool at
        all sets no hook in motion: `by_token` says that they may.
        """
        for hook in self._before:
            try:
                for answer in await self._asked_in_time(hook, validated):
                    validated = _heeded(hook, validated, answer)
            except Problem as problem:
                problem.decision = replace(by_token, rules=(*by_token.rules, hook.source))
                raise
        return validated

    async def _asked_in_time(self, hook: LoadedHook, validated: Validated) -> tuple[Answer, ...]:
        left = validated.deadline.remaining(self._clock.monotonic())
        try:
            return await self._ask(hook, (self._shown(validated),), min(hook.seconds, left))
        except (HookBroke, Nonsense) as error:
            if validated.deadline.remaining(self._clock.monotonic()) <= 0:
                raise DeadlineExceeded(
                    f"the deadline passed while the hook {hook.name} ran, so nothing was done"
                ) from error
            raise _blocked(hook, f"the hook {hook.name} gave no answer, so the call was not made: {error}") from error

    async def ended(self, verified: Verified) -> Verified:
        """The end of a dispatched call with what its hooks add to it; they change nothing about it."""
        validated, problem = verified.executed.authorized.validated, verified.problem
        if verified.asks is not None:
            # There is no result to hear of yet: they stand around the call that brings one.
            return verified
        if problem is None:
            hooks, end = self._after, verified.payload
        else:
            hooks, end = self._failure, _shown_problem(problem)
        try:
            return replace(verified, hooked=await self._heard(hooks, validated, end)) if hooks else verified
        except asyncio.CancelledError:
            # The outcome is known and must be recorded: `settle` hands it to the writer before it next waits, and
            # there the cancellation goes on.
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
                task.cancel()
            return verified

    async def failed(self, validated: Validated, problem: Problem) -> Validated:
        """A call that was not made, or not released, with what its hooks add to the refusal."""
        if not self._failure:
            return validated
        heard = await self._heard(self._failure, validated, _shown_problem(problem))
        return replace(validated, hooked=_together(validated.hooked, heard))

    async def _heard(self, hooks: Sequence[LoadedHook], validated: Validated, end: Any) -> Hooked:
        heard = Hooked()
        for hook in hooks:
            left = max(validated.deadline.remaining(self._clock.monotonic()), _LEAST_SECONDS)
            seen = (self._shown(validated), copy.deepcopy(end))
            try:
                for answer in await self._ask(hook, seen, min(hook.seconds, left)):
                    heard = _together(heard, _added(hook, answer))
            except (HookBroke, Nonsense) as error:
                told = f"{hook.source} could not add to this reply: {error}"
                heard = _together(heard, Hooked(did=(f"{hook.source} failed",), messages=(told,)))
        return heard

    async def _ask(self, hook: LoadedHook, seen: tuple[Any, ...], seconds: float) -> tuple[Answer, ...]:
        return answers_of(await self._runner.run(hook, seen, seconds), hook.moment)

    def _shown(self, validated: Validated) -> HookCall:
        received, contract = validated.received, validated.tool.contract
        return HookCall(
            call_id=received.call_id,
            tool=contract.full_name,
            version=contract.version,
            effects=contract.effects.value,
            arguments=copy.deepcopy(validated.call_input),
            tenant=received.caller.tenant,
            user=received.caller.user,
            agents=received.caller.agents,
            session=received.session,
            environment=self._environment,
            dry_run=received.request.dry_run,
            answers=None if validated.round is None else copy.deepcopy(validated.round.responses),
        )


def tightened(verdict: Verdict, hooked: Hooked) -> Verdict:
    """The verdict with what hooks thought of the call: as strict as the strictest of them, never less than it was.

    Its rules are those that gave this answer; a milder one of the policies stays in the record of their decision.
    """
    for opinion in hooked.permissions:
        if opinion.behavior.strictness > verdict.behavior.strictness:
            verdict = replace(opinion, digest=verdict.digest, errors=verdict.errors)
        elif opinion.behavior is verdict.behavior:
            verdict = replace(
                verdict, rules=verdict.rules + opinion.rules, demands=verdict.demands + opinion.demands
            )  # fmt: skip
    return verdict


def _heeded(hook: LoadedHook, validated: Validated, answer: Answer) -> Validated:
    match answer:
        case Stop(reason=reason):
            raise _blocked(hook, f"the hook {hook.name} stopped this call: {reason}", reason=reason)
        case Update():
            return _updated(hook, validated, answer)
        case Permission(behavior="passthrough"):
            return validated
        case Permission(behavior=behavior, reason=reason):
            rules = (Rule(id=hook.source, reason=reason),)
            opinion = Verdict(
                behavior=Behavior(behavior), rules=rules, digest="", source="hook", reason=reason,
                demands=demanded(rules) if behavior == "ask" else (),
            )  # fmt: skip
            said = Hooked(did=(f"{hook.source} {behavior}",), permissions=(opinion,))
        case _:
            said = _added(hook, answer)
    return replace(validated, hooked=_together(validated.hooked, said))


def _updated(hook: LoadedHook, validated: Validated, update: Update) -> Validated:
    """Other arguments for the tool, held to its schema again. The model's own words stay what they were."""
    before, tool = validated.call_input, validated.tool
    # As JSON carries them, so that nothing the hook holds on to is part of the call.
    given: dict[str, Any] = orjson.loads(plain(update.arguments))[""]
    after = {name: value for name, value in {**before, **given}.items() if name not in update.drop}
    changes = [
        Mutation(path=pointer((name,)), source=hook.source, change=f"{_kind(before, name)}→{_kind(after, name)}")
        for name in {**before, **after}
        if name not in before or name not in after or plain(before[name]) != plain(after[name])
    ]
    if not changes:
        return validated
    if not tool.is_valid_input(after):
        errors = tool.call_errors(after)
        if errors:
            where = f"{errors[0]['path'] or '/'} {errors[0]['message']}"
            raise _blocked(
                hook, f"the hook {hook.name} changed the arguments so that they do not fit: {where}", errors=errors
            )
    said = Hooked(did=(f"{hook.source} update",))
    return replace(
        validated,
        call_input=after,
        mutations=validated.mutations + tuple(changes),
        hooked=_together(validated.hooked, said),
    )


def _kind(arguments: dict[str, Any], name: str) -> str:
    return type_name(arguments[name]) if name in arguments else "absent"


def _added(hook: LoadedHook, answer: Answer) -> Hooked:
    match answer:
        case Context(value=value):
            added = {"source": hook.source, "value": orjson.loads(plain(value))[""]}
            return Hooked(did=(f"{hook.source} context",), context=(added,))
        case Message(text=text):
            return Hooked(did=(f"{hook.source} message",), messages=(f"{hook.source}: {text}",))
        case _:
            raise Nonsense(f"{type(answer).__name__} adds nothing")


def _together(first: Hooked, second: Hooked) -> Hooked:
    return Hooked(
        did=first.did + second.did,
        context=first.context + second.context,
        messages=first.messages + second.messages,
        permissions=first.permissions + second.permissions,
    )


def _shown_problem(problem: Problem) -> HookProblem:
    face = problem.face
    return HookProblem(slug=face.slug, code=face.code.value, message=problem.message, retryable=face.retryable)


def _blocked(hook: LoadedHook, sentence: str, **more: Any) -> HookBlocked:
    return HookBlocked(sentence, details={"hook": hook.name, "rule": hook.source, **more}, nothing_happened=True)
