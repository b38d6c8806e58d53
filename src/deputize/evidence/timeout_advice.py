"""Advise on the timeout class of a tool by what its calls took. Advice changes nothing."""

from dataclasses import dataclass
from typing import Any, Final

from deputize.core.contract.timing import Timeout, TimeoutClass
from deputize.evidence.call_measurements import CallEnd, Measurement
from deputize.evidence.objective_levels import MIN_CALLS

# A class fits if it allows so many times the p99.
HEADROOM: Final = 2
# A larger class is advised if more calls time out. At one in a hundred, the p99 would be the timeout itself.
MAX_TIMEOUT_SHARE: Final = 0.001


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeoutAdvice:
    """The class that fits what was measured; None if that is too little."""

    current_class: TimeoutClass
    fitting_class: TimeoutClass | None
    # True if calls time out, or are likely to.
    is_too_short: bool
    text: str

    def to_json(self) -> dict[str, Any]:
        return {
            "current_class": self.current_class,
            "fitting_class": self.fitting_class,
            "is_too_short": self.is_too_short,
            "needed_calls": MIN_CALLS,
            "text": self.text,
        }


def advise_timeout(timeout: Timeout, measurement: Measurement, p99: float | None) -> TimeoutAdvice:
    """Advise on a class: the smallest that allows twice the p99, or a larger one if calls time out."""
    current_class, calls, limit = timeout.timeout_class, measurement.timed_calls, timeout.effective_seconds
    fitting_class: TimeoutClass | None = None
    is_too_short = False
    timeouts = measurement.get_calls(CallEnd.TIMEOUT)
    text = "" if p99 is None else f"p99 is {p99:.3g} s over {calls:,} calls; {_describe_limit(timeout)}"
    if p99 is None or calls < MIN_CALLS:
        text = f"too few calls for advice: {calls:,} of {MIN_CALLS:,}. Ask again when there are more."
    elif timeouts > MAX_TIMEOUT_SHARE * calls:
        fitting_class, is_too_short = _find_class(limit + 1e-9), True
        change = _describe_change(timeout, fitting_class, HEADROOM * limit)
        text = f"{timeouts:,} of {calls:,} calls ran out of time; {_describe_limit(timeout)}. "
        text += f"{change}, or find out why these calls take so long."
    elif HEADROOM * p99 > limit:
        fitting_class, is_too_short = _find_class(HEADROOM * p99), True
        change = _describe_change(timeout, fitting_class, HEADROOM * p99)
        text += f", which is less than {HEADROOM} times as much. {change}."
    elif (smallest_class := _find_class(HEADROOM * p99)).seconds < current_class.seconds:
        fitting_class = smallest_class
        is_async = current_class is TimeoutClass.ASYNC
        note = ": callers then get the result, instead of 202 and a call to watch" if is_async else ""
        text += f'. Declare timeout="{fitting_class}"{note}.'
    else:
        fitting_class = current_class
        text += ". Keep it."
    return TimeoutAdvice(current_class=current_class, fitting_class=fitting_class, is_too_short=is_too_short, text=text)


def _find_class(seconds: float) -> TimeoutClass:
    """Find the smallest class that allows these seconds, or the largest."""
    return next((each for each in TimeoutClass if each.seconds >= seconds), TimeoutClass.ASYNC)


def _describe_limit(timeout: Timeout) -> str:
    limit, timeout_class = timeout.effective_seconds, timeout.timeout_class
    if limit < timeout_class.seconds:
        return f"its own limit is {limit:g} s"
    return f"`{timeout_class}` allows {limit:g} s"


def _describe_change(timeout: Timeout, fitting_class: TimeoutClass, seconds: float) -> str:
    """Describe how to declare a larger class; an async one names its seconds."""
    if fitting_class is not TimeoutClass.ASYNC:
        return f'Declare timeout="{fitting_class}"'
    whole_seconds = round(min(seconds, fitting_class.seconds))
    if timeout.timeout_class is TimeoutClass.ASYNC:
        return f"Raise timeout.seconds to {whole_seconds} or more"
    return f"Declare timeout={whole_seconds}, which is `{fitting_class}`: callers get 202 and watch the call"
