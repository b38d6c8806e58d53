"""Define every name of telemetry: spans, attributes and metrics."""

from enum import StrEnum


class Span(StrEnum):
    """The span of a call, and one for each phase."""

    CALL = "deputize.call"
    RECEIVE = "deputize.receive"
    VALIDATE = "deputize.validate"
    AUTHORIZE = "deputize.authorize"
    EXECUTE = "deputize.execute"
    VERIFY = "deputize.verify"
    REPLY = "deputize.reply"


class Attribute(StrEnum):
    """An attribute of spans."""

    TOOL = "gen_ai.tool.name"
    TOOL_VERSION = "deputize.tool.version"
    CALL_ID = "deputize.call.id"
    STATE = "deputize.call.state"
    TENANT = "deputize.tenant"
    ERROR = "error.type"


class Metric(StrEnum):
    """The metrics of calls, approvals and limits. Rates are counters, so that queries can choose any window."""

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
    NOTIFICATIONS = "deputize_approval_letters_total"
    CONNECTION_REFUSALS = "deputize_connection_refusals_total"
    DISAGREEMENTS = "deputize_source_disagreements_total"
    LOOP_STALLS = "deputize_event_loop_stall_seconds"
    DATABASE_WENT_BACK = "deputize_database_went_back"


METRIC_HELP: dict[Metric, str] = {
    Metric.CALLS: "Calls by tool, version, final state and mutation class.",
    Metric.LATENCY: "Time from receipt to reply, by tool, version and timeout class.",
    Metric.COST: "Declared or reported cost of calls, by tool, version and category.",
    Metric.RETRIES: "Attempts after the first, by tool and version.",
    Metric.TIMEOUTS: "Calls that passed their deadline, by tool, version and timeout class.",
    Metric.REPLAYS: "Calls answered with the stored outcome of the same idempotency key, by tool.",
    Metric.DRY_RUNS: "Dry runs, by tool.",
    Metric.APPROVALS_PENDING: "Approval requests waiting for a person, by tool and approver group.",
    Metric.APPROVAL_TIME: "Time from an approval request to its decision, by tool and resolution.",
    Metric.VALIDATION_FAILURES: "Inputs and outputs that did not match their schema, by tool and phase.",
    Metric.LIMIT_REFUSALS: "Calls refused by a limit, by the name of the limit.",
    Metric.LIMIT_UNCOUNTED: "Calls allowed while a limit's counters were unreachable, by the name of the limit.",
    Metric.NOTIFICATIONS: "Notifications to approvers, by outcome: told (sent), failed (to be retried) or given_up.",
    Metric.CONNECTION_REFUSALS: "Connections and requests refused before a caller was known, by reason.",
    Metric.DISAGREEMENTS: "Results that differ from what another tool said, by consistency rule and whether it "
    "resolved that.",
    Metric.LOOP_STALLS: "Times for which the event loop stood still, each longer than 50 ms.",
    Metric.DATABASE_WENT_BACK: "1 while calls are refused because the database went back in time, else 0.",
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
    Metric.NOTIFICATIONS: ("outcome",),
    Metric.CONNECTION_REFUSALS: ("reason",),
    Metric.DISAGREEMENTS: ("rule", "resolved"),
    Metric.LOOP_STALLS: (),
    Metric.DATABASE_WENT_BACK: (),
}
