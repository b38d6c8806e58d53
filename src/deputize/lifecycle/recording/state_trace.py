"""Name the states that each audit entry adds to its call.

The first entry of a call begins with `planned`, a later one continues after the last state of the one before it. There
are few different passages, so each is checked against the transitions and encoded once.
"""

from functools import cache

from deputize.core.errors import ParseFailed, Problem, ValidationProblem
from deputize.core.states import State
from deputize.evidence.audit_entries import Passage
from deputize.lifecycle.phases import Executed, Validated, Verified

S = State
_ARGUMENTS_READY = (S.PLANNED, S.SELECTED, S.ARGUMENTS_READY)
# What is raised after the tool was found, and before its arguments were accepted.
_ARGUMENT_PROBLEMS = (ValidationProblem, ParseFailed)


def trace_opening(validated: Validated, state: State, *, is_continuation: bool = False) -> Passage:
    """Trace a call from its request to the state its first entry is committed with.

    With `is_continuation`, the call began inside its request and yielded, to go on as a run.
    """
    return _build_opening(validated.runs_pre_hooks, state, is_continuation)


@cache
def _build_opening(pre_hooks: bool, state: State, is_continuation: bool) -> Passage:
    earlier_states = (S.RUNNING, S.YIELDED) if is_continuation else ()
    return Passage(*_list_first_states(pre_hooks), *earlier_states, state)


def trace_read(verified: Verified, state: State) -> Passage:
    """Trace a read from its request to its end: it has one entry."""
    executed = verified.executed
    return _build_read(executed.validated.runs_pre_hooks, executed.has_partial_result, verified.ran_post_hooks, state)


@cache
def _build_read(pre_hooks: bool, partial: bool, post_hooks: bool, state: State) -> Passage:
    return Passage(*_list_first_states(pre_hooks), S.RUNNING, *_list_last_states(partial, post_hooks), state)


def trace_dry_run(validated: Validated) -> Passage:
    """Trace a dry run: its tool's preview was executed."""
    return _build_read(validated.runs_pre_hooks, False, False, S.SUCCEEDED)


def trace_end(executed: Executed, state: State, *, ran_post_hooks: bool = False) -> Passage:
    """Trace a claimed call from its dispatch to its end."""
    return _build_end(executed.has_partial_result, ran_post_hooks, state)


@cache
def _build_end(partial: bool, post_hooks: bool, state: State) -> Passage:
    return Passage(*_list_last_states(partial, post_hooks), state, before=S.RUNNING)


def trace_refusal(validated: Validated | None, problem: Problem, state: State) -> Passage:
    """Trace a refused call as far as it came; if another entry has its path, name only the state of the answer."""
    if problem.is_recorded:
        return trace_step(None, state)
    if validated is None:
        return _build_early_refusal(isinstance(problem, _ARGUMENT_PROBLEMS), state)
    return _build_refusal(validated.runs_pre_hooks, state)


@cache
def _build_early_refusal(is_selected: bool, state: State) -> Passage:
    return Passage(S.PLANNED, *((S.SELECTED,) if is_selected else ()), state)


@cache
def _build_refusal(pre_hooks: bool, state: State) -> Passage:
    # An outcome is unknown only if the tool may have been executed.
    return Passage(*_list_first_states(pre_hooks), *((S.RUNNING,) if state is S.UNKNOWN else ()), state)


@cache
def trace_step(before: State | None, *states: State) -> Passage:
    """Trace a stored call from one state to the next."""
    return Passage(*states, before=before)


def _list_first_states(pre_hooks: bool) -> tuple[State, ...]:
    return (*_ARGUMENTS_READY, S.PRE_HOOKS_RUNNING) if pre_hooks else _ARGUMENTS_READY


def _list_last_states(partial: bool, post_hooks: bool) -> tuple[State, ...]:
    return (*((S.PARTIAL_RESULT,) if partial else ()), *((S.POST_HOOKS_RUNNING,) if post_hooks else ()))
