"""Decide when a circuit opens, tries its service again and closes. No clock, no input or output.

    closed      calls pass, and failures are counted; enough of them within the window open the circuit
    open        calls are refused until its time is over
    half open   some calls pass as trials; enough successes close the circuit, and one failure opens it again

A circuit is a value, and its times are seconds on any one clock: a gateway has it in its own monotonic time, and the
database in its own. `shift_times` converts between them.
"""

import math
from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Final

from deputize.core.contract.reliability import CircuitBreaker
from deputize.core.value_types import frozen

# A contract's failure_threshold cannot be higher, and its window cannot be longer.
MAX_FAILURES: Final = 100
MAX_WINDOW_SECONDS: Final = 3600
# The share of half_open_max_calls that may try a service before any call has succeeded.
FIRST_TRIAL_PERCENT: Final = 10
MAX_REASON_LENGTH: Final = 200
# Trials that gave their place to others, and whose successes still count.
MAX_LATE_TRIALS: Final = 20


class CircuitState(StrEnum):
    """Whether calls pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@frozen
class Circuit:
    """The circuit of one service. `epoch` counts its changes of state."""

    state: CircuitState = CircuitState.CLOSED
    epoch: int = 0
    changed_at: float = -math.inf
    # Why it opened last.
    reason: str = ""
    # When calls failed since it closed, the oldest first.
    failures: tuple[float, ...] = ()
    # What the contract declares whose call opened it.
    rules: CircuitBreaker = CircuitBreaker()
    successes: int = 0
    # Trials without a result, and when each gives its place to others.
    trials: Mapping[str, float] = field(default_factory=dict)

    @property
    def retry_at(self) -> float:
        """When an open circuit lets the first trial pass."""
        return self.changed_at + self.rules.timeout_seconds

    @property
    def trial_limit(self) -> int:
        """How many trials may be on their way at once: a tenth at first, and more with each success."""
        rules = self.rules
        grown_percent = (100 - FIRST_TRIAL_PERCENT) * min(self.successes, rules.success_threshold)
        percent = FIRST_TRIAL_PERCENT + grown_percent // rules.success_threshold
        return max(1, min(rules.half_open_max_calls, math.ceil(rules.half_open_max_calls * percent / 100)))

    def add_failure(self, rules: CircuitBreaker, reason: str, *, at: float, now: float) -> "Circuit":
        """Count a failed call, and open the circuit if its contract's threshold is reached.

        A circuit that is not closed does not count: only the results of trials decide about it. Neither does a failure
        from before it closed.
        """
        if self.state is not CircuitState.CLOSED or at <= self.changed_at:
            return self
        recent_failures = [each for each in self.failures if each > at - MAX_WINDOW_SECONDS]
        failures = tuple(sorted([*recent_failures, at])[-MAX_FAILURES:])
        if sum(each > failures[-1] - rules.window_seconds for each in failures) < rules.failure_threshold:
            return replace(self, failures=failures)
        return replace(self, rules=rules)._open(reason, now)

    def grant_trial(self, trial_id: str, *, now: float, seconds: float) -> "Circuit | None":
        """Let a call of at most these seconds try the service; None if it must not."""
        circuit = self
        if circuit.state is CircuitState.OPEN and now >= circuit.retry_at:
            circuit = circuit._change_state(CircuitState.HALF_OPEN, now)
        if circuit.state is not CircuitState.HALF_OPEN:
            return None
        late_trials = [each for each, ends_at in circuit.trials.items() if ends_at <= now]
        if len(circuit.trials) - len(late_trials) >= circuit.trial_limit:
            return None
        # Where every call takes longer than a trial keeps its place, late successes are the only ones.
        oldest_trials = set(late_trials[:-MAX_LATE_TRIALS])
        trials = {each: ends_at for each, ends_at in circuit.trials.items() if each not in oldest_trials}
        return replace(circuit, trials={**trials, trial_id: now + seconds})

    def end_trial(self, trial_id: str, *, has_succeeded: bool | None, reason: str, now: float) -> "Circuit":
        """Count the result of a trial, of a late one only a success; None if it has none."""
        if self.state is not CircuitState.HALF_OPEN or trial_id not in self.trials:
            return self
        if has_succeeded is False and now < self.trials[trial_id]:
            return self._open(reason, now)
        trials = {each: ends_at for each, ends_at in self.trials.items() if each != trial_id}
        circuit = replace(self, trials=trials, successes=self.successes + bool(has_succeeded))
        if circuit.successes >= self.rules.success_threshold:
            return circuit._change_state(CircuitState.CLOSED, now)
        return circuit

    def shift_times(self, seconds: float) -> "Circuit":
        """Convert every time to a clock that is ahead by these seconds."""
        return replace(
            self,
            changed_at=self.changed_at + seconds,
            failures=tuple(each + seconds for each in self.failures),
            trials={each: ends_at + seconds for each, ends_at in self.trials.items()},
        )

    def _open(self, reason: str, now: float) -> "Circuit":
        return replace(self, reason=reason[:MAX_REASON_LENGTH])._change_state(CircuitState.OPEN, now)

    def _change_state(self, state: CircuitState, now: float) -> "Circuit":
        return replace(self, state=state, epoch=self.epoch + 1, changed_at=now, failures=(), successes=0, trials={})


@frozen
class FailedCall:
    """A call that failed because of its service, and what its contract declares."""

    at: float
    rules: CircuitBreaker
    reason: str

    def apply(self, circuit: Circuit, offset: float) -> Circuit:
        """Apply the failure to a circuit whose clock is ahead by these seconds."""
        at = self.at + offset
        return circuit.add_failure(self.rules, self.reason, at=at, now=at)


@frozen
class EndedTrial:
    """The end of a trial; without a result if the service was not reached."""

    at: float
    trial_id: str
    has_succeeded: bool | None
    reason: str = ""

    def apply(self, circuit: Circuit, offset: float) -> Circuit:
        """Apply the result to a circuit whose clock is ahead by these seconds."""
        return circuit.end_trial(
            self.trial_id, has_succeeded=self.has_succeeded, reason=self.reason, now=self.at + offset
        )


CircuitEvent = FailedCall | EndedTrial
