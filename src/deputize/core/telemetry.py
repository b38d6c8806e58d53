"""Define every name of telemetry: spans, attributes and metrics."""

from enum import StrEnum
from typing import Final


class Span(StrEnum):
    """The span of a call, one for each worker that takes it up later, for each phase, and for each attempt."""

    CALL = "deputize.call"
    RUN = "deputize.run"
    VALIDATE = "deputize.validate"
    AUTHORIZE = "deputize.authorize"
    EXECUTE = "deputize.execute"
    ATTEMPT = "deputize.attempt"
    VERIFY = "deputize.verify"
    REPLY = "deputize.reply"


SPAN_HELP: dict[Span, str] = {
    Span.CALL: "The call, from its request to its answer.",
    Span.RUN: "A worker with a call that was queued, approved or taken over, in the call's span however much later.",
    Span.VALIDATE: "The arguments are checked against the contract.",
    Span.AUTHORIZE: "Token and policies are checked; a worker checks them, and the approval, once more.",
    Span.EXECUTE: "The call is claimed, and the tool is called.",
    Span.ATTEMPT: "One attempt: the tool, or the request to its server. Its id is what the server gets as parent.",
    Span.VERIFY: "The result is checked against the contract.",
    Span.REPLY: "The outcome is recorded, and the answer made.",
}


# The semantic conventions of OpenTelemetry whose names are used here; those of GenAI and MCP are still in development,
# so a test compares them with this version.
SEMANTIC_CONVENTIONS: Final = "0.66b2"
# What a call is in the conventions for GenAI: `gen_ai.operation.name`.
EXECUTE_TOOL: Final = "execute_tool"
# What a gRPC attempt is in the conventions for RPC: `rpc.system.name`.
GRPC_SYSTEM: Final = "grpc"


class Attribute(StrEnum):
    """An attribute of spans: a name of the semantic conventions if there is one, else one of our own."""

    OPERATION = "gen_ai.operation.name"
    TOOL = "gen_ai.tool.name"
    TOOL_CALL = "gen_ai.tool.call.id"
    CONVERSATION = "gen_ai.conversation.id"
    MCP_METHOD = "mcp.method.name"
    HTTP_METHOD = "http.request.method"
    URL_TEMPLATE = "url.template"
    RPC_SYSTEM = "rpc.system.name"
    ERROR = "error.type"
    CALL_ID = "deputize.call.id"
    STATE = "deputize.call.state"
    LATENCY = "deputize.call.latency_ms"
    COST = "deputize.call.cost"
    CURRENCY = "deputize.call.currency"
    SIZE = "deputize.call.envelope_bytes"
    TARGET = "deputize.attempt.target"
    ATTEMPT = "deputize.attempt.number"


class Metric(StrEnum):
    """The metrics of calls, approvals and limits. Rates are counters, so that queries can choose any window."""

    CALLS = "deputize_tool_invocations_total"
    LATENCY = "deputize_tool_invocation_latency_seconds"
    COST = "deputize_tool_invocation_cost_total"
    RETRIES = "deputize_tool_invocation_retries_total"
    TIMEOUTS = "deputize_tool_invocation_timeouts_total"
    CACHED_READS = "deputize_tool_cached_reads_total"
    FALLBACKS = "deputize_tool_fallbacks_total"
    REPLAYS = "deputize_tool_idempotency_replays_total"
    DRY_RUNS = "deputize_tool_dry_runs_total"
    ALERT_THRESHOLD = "deputize_tool_alert_threshold"
    APPROVALS_PENDING = "deputize_tool_approvals_pending"
    APPROVAL_TIME = "deputize_tool_approval_resolution_seconds"
    VALIDATION_FAILURES = "deputize_tool_schema_validation_failures_total"
    LIMIT_REFUSALS = "deputize_limit_refusals_total"
    LIMIT_UNCOUNTED = "deputize_limit_uncounted_total"
    NOTIFICATIONS = "deputize_approval_notifications_total"
    CONNECTION_REFUSALS = "deputize_connection_refusals_total"
    DISAGREEMENTS = "deputize_source_disagreements_total"
    SUSPICIONS = "deputize_injection_suspicions_total"
    LOOP_STALLS = "deputize_event_loop_stall_seconds"
    DATABASE_WENT_BACK = "deputize_database_went_back"
    LOG_UNWITNESSED = "deputize_log_unwitnessed_seconds"
    WITNESS_REFUSALS = "deputize_log_witness_refusals_total"
    READINESS = "deputize_readiness_check"
    CIRCUIT_STATE = "deputize_circuit_state"
    RETRY_REFUSALS = "deputize_retry_refusals_total"
    SERVICE_CALLS = "deputize_service_calls"
    SERVICE_REFUSALS = "deputize_service_refusals_total"
    EVENT_LAG = "deputize_event_lag_seconds"
    EVENTS_SENT = "deputize_events_sent_total"
    EVENT_FAILURES = "deputize_event_send_failures_total"
    BUILD = "deputize_build_info"
    COMMIT_TIME = "deputize_commit_seconds"
    COMMIT_ROWS = "deputize_commit_rows_total"
    COMMIT_QUEUE = "deputize_commit_queue_rows"
    POOL_CONNECTIONS = "deputize_pool_connections"
    POOL_LIMIT = "deputize_pool_connections_limit"
    QUEUED_CALLS = "deputize_queued_calls"
    QUEUED_CALL_AGE = "deputize_queued_call_age_seconds"
    UNLOGGED_ENTRIES = "deputize_log_queue_entries"
    SEQUENCER_LAG = "deputize_log_sequencer_lag_seconds"


METRIC_HELP: dict[Metric, str] = {
    Metric.CALLS: "Calls by tool, version, final state and mutation class.",
    Metric.LATENCY: "Time from receipt to reply, by tool, version and timeout class.",
    Metric.COST: "Cost of calls and their reviews, by tool, version, category (the component) and currency.",
    Metric.RETRIES: "Attempts after the first, by tool and version.",
    Metric.TIMEOUTS: "Calls that passed their deadline, by tool, version and timeout class.",
    Metric.CACHED_READS: "Reads answered with the result of an earlier one that is still fresh, by tool.",
    Metric.FALLBACKS: "Calls answered by an alternative, because the tool was not available, by tool.",
    Metric.REPLAYS: "Calls answered with the stored outcome of the same idempotency key, by tool.",
    Metric.DRY_RUNS: "Dry runs, by tool.",
    Metric.ALERT_THRESHOLD: "What a contract declares in `alerts`, by tool and threshold: error_rate, timeout_rate, "
    "latency_factor or pending_approvals; of several versions, the lowest.",
    Metric.APPROVALS_PENDING: "Approval requests waiting for a person, by tool and approver group.",
    Metric.APPROVAL_TIME: "Time from an approval request to its decision, by tool and resolution.",
    Metric.VALIDATION_FAILURES: "Inputs and outputs that did not match their schema, by tool and phase.",
    Metric.LIMIT_REFUSALS: "Calls refused by a limit, by the name of the limit.",
    Metric.LIMIT_UNCOUNTED: "Calls allowed while a limit's counters were unreachable, by the name of the limit.",
    Metric.NOTIFICATIONS: "Notifications to approvers, by outcome: sent, failed (to be retried) or given_up.",
    Metric.CONNECTION_REFUSALS: "Connections and requests refused before a caller was known, by reason.",
    Metric.DISAGREEMENTS: "Results that differ from what another tool said, by consistency rule and whether it "
    "resolved that.",
    Metric.SUSPICIONS: "Texts that look like an injection attempt, by kind and whether in arguments or a result.",
    Metric.LOOP_STALLS: "Times for which the event loop stood still, each longer than 50 ms.",
    Metric.READINESS: "1 while a check of `/readyz` passes, else 0, by check and whether readiness requires it.",
    Metric.CIRCUIT_STATE: "Whether calls to an external service pass, by service: 0 closed, 1 half open, 2 open; of "
    "several tenants, the worst.",
    Metric.RETRY_REFUSALS: "Attempts that were not repeated because a service's retry budget was spent, by service.",
    Metric.SERVICE_CALLS: "Calls to an external service, by service and state: running, or waiting for their turn.",
    Metric.SERVICE_REFUSALS: "Calls that were refused, or runs that were held, because too many calls to their service "
    "were in progress, its rate was reached, or it asked for a pause, by service.",
    Metric.LOG_UNWITNESSED: "Time for which the oldest checkpoint has waited for cosignatures, where logs are signed.",
    Metric.WITNESS_REFUSALS: "Requests for cosignatures that failed, by witness and reason: unreachable, refused or "
    "conflict.",
    Metric.DATABASE_WENT_BACK: "1 while calls are refused because the database went back in time, else 0.",
    Metric.EVENT_LAG: "Age of the oldest audit entry that an event sink has not received, by sink. 0 if it has all.",
    Metric.EVENTS_SENT: "Events that a sink acknowledged to this process, by sink.",
    Metric.EVENT_FAILURES: "Attempts of this process to send events that failed, by sink.",
    Metric.BUILD: "1, with the release of this process and its Python.",
    Metric.COMMIT_TIME: "Time that batches took to commit, attempts that failed included, by writer: calls or runs.",
    Metric.COMMIT_ROWS: "Rows that were committed in batches, by writer.",
    Metric.COMMIT_QUEUE: "Rows that wait for their commit or are being committed, by writer.",
    Metric.POOL_CONNECTIONS: "Open connections to PostgreSQL, by pool (readers or writers) and state (used or idle).",
    Metric.POOL_LIMIT: "The most connections that a pool opens.",
    Metric.QUEUED_CALLS: "Calls of all tenants that wait for a worker, at most 100,000. Every process shows the same.",
    Metric.QUEUED_CALL_AGE: "Time since the oldest call was made that waits for a worker. 0 if none does.",
    Metric.UNLOGGED_ENTRIES: "Audit entries that are not in their log yet, at most 100,000.",
    Metric.SEQUENCER_LAG: "Age of the oldest audit entry that is not in its log yet. 0 if all are.",
}

METRIC_LABELS: dict[Metric, tuple[str, ...]] = {
    Metric.CALLS: ("tool", "version", "state", "mutation_class"),
    Metric.LATENCY: ("tool", "version", "timeout_class"),
    Metric.COST: ("tool", "version", "category", "currency"),
    Metric.RETRIES: ("tool", "version"),
    Metric.TIMEOUTS: ("tool", "version", "timeout_class"),
    Metric.CACHED_READS: ("tool",),
    Metric.FALLBACKS: ("tool",),
    Metric.REPLAYS: ("tool",),
    Metric.DRY_RUNS: ("tool",),
    Metric.ALERT_THRESHOLD: ("tool", "threshold"),
    Metric.APPROVALS_PENDING: ("tool", "approver_group"),
    Metric.APPROVAL_TIME: ("tool", "resolution"),
    Metric.VALIDATION_FAILURES: ("tool", "phase"),
    Metric.LIMIT_REFUSALS: ("rule",),
    Metric.LIMIT_UNCOUNTED: ("rule",),
    Metric.NOTIFICATIONS: ("outcome",),
    Metric.CONNECTION_REFUSALS: ("reason",),
    Metric.DISAGREEMENTS: ("rule", "resolved"),
    Metric.SUSPICIONS: ("kind", "side"),
    Metric.LOOP_STALLS: (),
    Metric.DATABASE_WENT_BACK: (),
    Metric.LOG_UNWITNESSED: (),
    Metric.WITNESS_REFUSALS: ("witness", "reason"),
    Metric.READINESS: ("check", "required"),
    Metric.CIRCUIT_STATE: ("service",),
    Metric.RETRY_REFUSALS: ("service",),
    Metric.SERVICE_CALLS: ("service", "state"),
    Metric.SERVICE_REFUSALS: ("service",),
    Metric.EVENT_LAG: ("sink",),
    Metric.EVENTS_SENT: ("sink",),
    Metric.EVENT_FAILURES: ("sink",),
    Metric.BUILD: ("version", "python"),
    Metric.COMMIT_TIME: ("writer",),
    Metric.COMMIT_ROWS: ("writer",),
    Metric.COMMIT_QUEUE: ("writer",),
    Metric.POOL_CONNECTIONS: ("pool", "state"),
    Metric.POOL_LIMIT: ("pool",),
    Metric.QUEUED_CALLS: (),
    Metric.QUEUED_CALL_AGE: (),
    Metric.UNLOGGED_ENTRIES: (),
    Metric.SEQUENCER_LAG: (),
}
