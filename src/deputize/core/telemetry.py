"""Every name telemetry uses, in one place: spans, attributes, metrics. No other file spells one out."""

from enum import StrEnum


class Span(StrEnum):
    CALL = "deputize.call"
    RECEIVE = "deputize.receive"
    VALIDATE = "deputize.validate"
    AUTHORIZE = "deputize.authorize"
    EXECUTE = "deputize.execute"
    VERIFY = "deputize.verify"
    REPLY = "deputize.reply"


class Attribute(StrEnum):
    TOOL = "gen_ai.tool.name"
    TOOL_VERSION = "deputize.tool.version"
    CALL_ID = "deputize.call.id"
    STATE = "deputize.call.state"
    TENANT = "deputize.tenant"
    ERROR = "error.type"


class Metric(StrEnum):
    """The nine signals of an invocation boundary, dry runs, and what limits did; rates are counters here, so that any
    window can be asked for."""

    CALLS = "deputize_tool_invocations_total"
    LATENCY = "deputize_tool_invocation_latency_seconds"
    COST = "deputize_tool_invocation_cost_total"
    RETRIES = "deputize_tool_invocation_retries_total"
    TIMEOUTS = "deputize_tool_invocation_timeouts_total"
    REPLAYS = "deputize_tool_idempotency_replays_total"
    DRY_RUNS = "deputize_tool_dry_runs_total"
    APPROVALS_PENDING = "deputize_tool_approvals_pending"
    APPROVAL_TIME = "deputize_tool_approval_resolution_seconds"
    VALIDATION_FAILURES = "deputize_tool_schema_validation_failures_total"
    LIMIT_REFUSALS = "deputize_limit_refusals_total"
    LIMIT_UNCOUNTED = "deputize_limit_uncounted_total"
    LETTERS = "deputize_approval_letters_total"


METRIC_HELP: dict[Metric, str] = {
    Metric.CALLS: "Calls by tool, version, final state and mutation class.",
    Metric.LATENCY: "Time from receipt to reply, by tool, version and timeout class.",
    Metric.COST: "Declared or reported cost of calls, by tool, version and category.",
    Metric.RETRIES: "Attempts after the first, by tool and version.",
    Metric.TIMEOUTS: "Calls that passed their deadline, by tool, version and timeout class.",
    Metric.REPLAYS: "Calls answered from an earlier outcome of the same key, by tool.",
    Metric.DRY_RUNS: "Calls that were previewed and not made, by tool.",
    Metric.APPROVALS_PENDING: "Tickets waiting for a human, by tool and approver group.",
    Metric.APPROVAL_TIME: "Time from asking a human to the answer, by tool and resolution.",
    Metric.VALIDATION_FAILURES: "Inputs and outputs that did not fit their schema, by tool and phase.",
    Metric.LIMIT_REFUSALS: "Calls that a limit refused, by its name.",
    Metric.LIMIT_UNCOUNTED: "Calls let through while a limit's counters were away, by its name.",
    Metric.LETTERS: "Messages to approvers, by outcome: told, failed (to be tried again) or given_up.",
}

METRIC_LABELS: dict[Metric, tuple[str, ...]] = {
    Metric.CALLS: ("tool", "version", "state", "mutation_class"),
    Metric.LATENCY: ("tool", "version", "timeout_class"),
    Metric.COST: ("tool", "version", "category"),
    Metric.RETRIES: ("tool", "version"),
    Metric.TIMEOUTS: ("tool", "version", "timeout_class"),
    Metric.REPLAYS: ("tool",),
    Metric.DRY_RUNS: ("tool",),
    Metric.APPROVALS_PENDING: ("tool", "approver_group"),
    Metric.APPROVAL_TIME: ("tool", "resolution"),
    Metric.VALIDATION_FAILURES: ("tool", "phase"),
    Metric.LIMIT_REFUSALS: ("rule",),
    Metric.LIMIT_UNCOUNTED: ("rule",),
    Metric.LETTERS: ("outcome",),
}
