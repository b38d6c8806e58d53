"""Send what is cheap to write and costly to read through every interface, and measure how long the event loop is busy.

A stretch is the processor time of the loop's thread in one turn of the loop; a wait is the processor time of another
thread in which the loop could not turn, because that thread kept the interpreter's lock. Nothing else on the machine
counts for either. What stretches is moved away from the loop, or its size limit shrinks.
"""

from collections.abc import Sequence

from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.stalls import attacks
from proofs.stalls.testbed import Measurement, Testbed

NAME = "stalls"
PROMISE = "Nothing that callers, administrators or servers send keeps the event loop busy for more than 50 ms."
FULL_ONLY = True
_OLD_MATCHER, _UNBOUNDED_DOCUMENTS = "stalls_old_matcher", "stalls_unbounded_documents"
_RAW_STREAMS = "stalls_raw_streams"
# What calls end in whose peer sends framing without end: its service is not available.
_REFUSED = 503
_MAX_STRETCH_MS = 50
# The quick form is run on machines that do other things, too, which slow each instruction down.
_QUICK_FACTOR = 3


async def prove(sandbox: Sandbox) -> Verdict:
    testbed = await Testbed.start(
        sandbox, (attacks.RESULTS_SERVER, attacks.PATTERNS_SERVER, *attacks.list_definition_servers())
    )
    await attacks.warm_up(testbed)
    memory_before = testbed.read_memory_mb()
    kinds = attacks.ATTACKS if sandbox.full else attacks.QUICK_ATTACKS
    for attack in kinds:
        await attack(testbed)
    measured, memory_after = testbed.take_measurements(), testbed.read_memory_mb()
    memory_peak = testbed.read_memory_mb("VmHWM")
    sandbox.log("once more, for what is kept in memory")
    for attack in attacks.QUICK_ATTACKS:
        await attack(testbed)
    measured += testbed.take_measurements()
    memory_again = testbed.read_memory_mb() - memory_after
    sandbox.log(f"control: {_OLD_MATCHER}")
    await testbed.restart_as_variant(_OLD_MATCHER)
    await attacks.send_pattern_results(testbed, only=attacks.SHORT_NAME)
    old_matcher = testbed.take_measurements()
    sandbox.log(f"control: {_UNBOUNDED_DOCUMENTS}")
    await testbed.restart_as_variant(_UNBOUNDED_DOCUMENTS)
    await attacks.send_many_objects(testbed)
    unbounded_documents = testbed.take_measurements()
    sandbox.log(f"control: {_RAW_STREAMS}")
    await testbed.restart_as_variant(_RAW_STREAMS)
    await attacks.answer_with_framing(testbed, only="chunks")
    raw_streams = testbed.take_measurements()
    _print_longest(sandbox, measured)
    memory: dict[str, Figure] = {
        "peak_memory_growth_mb": round(memory_peak - memory_before, 1),
        "memory_growth_when_repeated_mb": round(memory_again, 1),
    }
    controls = {
        _OLD_MATCHER: _find_longest(old_matcher),
        _UNBOUNDED_DOCUMENTS: _find_longest(unbounded_documents),
        _RAW_STREAMS: _find_longest(raw_streams),
    }
    return build_verdict(measured, memory, controls, _MAX_STRETCH_MS * (1 if sandbox.full else _QUICK_FACTOR))


def build_verdict(
    measured: Sequence[Measurement], memory: dict[str, Figure], controls: dict[str, float], limit_ms: int
) -> Verdict:
    worst = max(measured, key=lambda each: each.stretch_ms)
    figures: dict[str, Figure] = {
        "longest_stretch_ms": worst.stretch_ms,
        "longest_wait_ms": max(each.wait_ms for each in measured),
        "requests": len(measured),
        "accepted_requests": sum(each.status < 300 for each in measured),
        "framing_accepted": sum(each.name.startswith(attacks.FRAMING) and each.status != _REFUSED for each in measured),
        "internal_errors": sum(each.status == 500 for each in measured),
        **memory,
        **{f"{name}_longest_ms": longest_ms for name, longest_ms in controls.items()},
    }
    return Verdict(
        figures=figures,
        controls={name: longest_ms > limit_ms for name, longest_ms in controls.items()},
        notes=[f"the longest stretch of the loop's thread: {worst.name}"],
    )


def _find_longest(measurements: Sequence[Measurement]) -> float:
    return max(each.stretch_ms for each in measurements)


def _print_longest(sandbox: Sandbox, measured: Sequence[Measurement]) -> None:
    for each in sorted(measured, key=lambda each: -each.stretch_ms)[:10]:
        sandbox.log(f"stretch of {each.stretch_ms} ms: {each.name} ({each.status})")
    for each in sorted(measured, key=lambda each: -each.wait_ms)[:10]:
        sandbox.log(f"wait of {each.wait_ms} ms: {each.name} ({each.status})")
