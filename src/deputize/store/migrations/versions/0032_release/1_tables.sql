-- The tables of the first release, each with what belongs to it. Later revisions change them; this file stays.

grant usage on schema deputize to deputize_reader;
grant usage on schema deputize to deputize_writer;

CREATE TYPE deputize.commit_result AS (
    kind text,
    tenant text,
    id uuid,
    holder uuid,
    registry bigint,
    policy bigint,
    revocation bigint
);
COMMENT ON TYPE deputize.commit_result IS
    'One fact about a batch. epochs: a tenant''s epochs as of this commit. claimed: the key of call id belongs to '
    'call holder. closed: the outcome of call id is stored. taken_over, continued: call id is the caller''s now. '
    'no_worker: no worker is alive. begun, waits, busy, lapsed, unapproved: what came of beginning run id.';

CREATE FUNCTION deputize.secure_table(table_name text, writer_privileges text) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    execute format('alter table deputize.%I enable row level security', table_name);
    execute format('alter table deputize.%I force row level security', table_name);
    execute format('create policy one_tenant on deputize.%I for select to deputize_reader
                    using (tenant = current_setting(''deputize.tenant'', true))', table_name);
    execute format('create policy every_tenant on deputize.%I to deputize_writer using (true) with check (true)',
        table_name);
    execute format('create policy owner_maintains on deputize.%I to deputize_owner using (true) with check (true)',
        table_name);
    execute format('grant select on deputize.%I to deputize_reader', table_name);
    execute format('grant %s on deputize.%I to deputize_writer', writer_privileges, table_name);
end $$;
COMMENT ON FUNCTION deputize.secure_table(table_name text, writer_privileges text) IS
    'Force row-level security on a table with a tenant column, add the policies of the three roles, and grant the '
    'reader select and the writer what the second argument lists. For migrations: each calls it for every such '
    'table it creates.';

CREATE TABLE deputize.approval_groups (
    tenant text NOT NULL,
    grp text NOT NULL,
    id uuid NOT NULL
);
ALTER TABLE deputize.approval_groups ADD CONSTRAINT approval_groups_pkey PRIMARY KEY (tenant, grp, id);
COMMENT ON TABLE deputize.approval_groups IS 'Which groups may see and decide an open approval request now.';
select deputize.secure_table('approval_groups', 'select, insert, delete');

CREATE TABLE deputize.approvals (
    tenant text NOT NULL,
    id uuid NOT NULL,
    call_id uuid NOT NULL,
    state text DEFAULT 'open'::text NOT NULL,
    binding bytea NOT NULL,
    demands bytea NOT NULL,
    presentation bytea NOT NULL,
    preview_digest bytea,
    previewed_at timestamp with time zone,
    fresh_seconds integer,
    chain text[] NOT NULL,
    tool text NOT NULL,
    group_key text NOT NULL,
    level integer DEFAULT 0 NOT NULL,
    levels double precision[] NOT NULL,
    reminders_sent integer DEFAULT 0 NOT NULL,
    opened_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    next_at timestamp with time zone,
    closed_at timestamp with time zone,
    CONSTRAINT approvals_state_check CHECK ((state = ANY (ARRAY['open'::text, 'approved'::text, 'used'::text, 'denied'::text, 'expired'::text, 'void'::text, 'canceled'::text])))
);
ALTER TABLE deputize.approvals ADD CONSTRAINT approvals_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.approvals IS
    'Approval requests: what each is bound to, what it requires and where it stands.';
select deputize.secure_table('approvals', 'select, insert, update');

CREATE TABLE deputize.audit_entries (
    tenant text NOT NULL,
    id uuid NOT NULL,
    call_id uuid,
    entry bytea NOT NULL,
    salt bytea
)
PARTITION BY RANGE (id);
ALTER TABLE deputize.audit_entries ADD CONSTRAINT audit_entries_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.audit_entries IS
    'The audit log, append-only: canonical bytes of each entry, and the salt that stays outside of them.';
select deputize.secure_table('audit_entries', 'select, insert');

CREATE TABLE deputize.budgets (
    tenant text NOT NULL,
    rule text NOT NULL,
    key text NOT NULL,
    period bigint NOT NULL,
    granted bigint DEFAULT 0 NOT NULL
);
ALTER TABLE deputize.budgets ADD CONSTRAINT budgets_pkey PRIMARY KEY (tenant, rule, key, period);
COMMENT ON TABLE deputize.budgets IS
    'Budgets, leased to gateways in slices so that no row is hot. What is leased counts as spent until it is given '
    'back.';
select deputize.secure_table('budgets', 'select, insert, delete, update');

CREATE TABLE deputize.call_costs (
    tenant text NOT NULL,
    day date NOT NULL,
    tool text NOT NULL,
    version text NOT NULL,
    caller text[] NOT NULL,
    task text NOT NULL,
    currency text NOT NULL,
    calls bigint NOT NULL,
    compute_seconds double precision NOT NULL,
    storage_bytes double precision NOT NULL,
    network_bytes double precision NOT NULL,
    tokens double precision NOT NULL,
    reviews bigint NOT NULL,
    review_seconds double precision NOT NULL,
    compute_cost double precision NOT NULL,
    external_api_cost double precision NOT NULL,
    storage_io_cost double precision NOT NULL,
    network_cost double precision NOT NULL,
    token_cost double precision NOT NULL,
    human_review_cost double precision NOT NULL
);
ALTER TABLE deputize.call_costs ADD CONSTRAINT call_costs_pkey PRIMARY KEY (tenant, day, tool, version, caller, task, currency);
COMMENT ON TABLE deputize.call_costs IS
    'What calls used and cost, by day, tool, caller, task and currency. Written every few seconds by each process.';
select deputize.secure_table('call_costs', 'select, insert, delete, update');

CREATE TABLE deputize.call_measurements (
    tenant text NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    day date NOT NULL,
    succeeded_calls bigint NOT NULL,
    rejected_calls bigint NOT NULL,
    failed_calls bigint NOT NULL,
    timed_out_calls bigint NOT NULL,
    unknown_calls bigint NOT NULL,
    slow_calls bigint NOT NULL,
    max_latency_us bigint NOT NULL,
    cost_micros numeric NOT NULL,
    max_cost_micros bigint NOT NULL,
    latency_buckets smallint[] NOT NULL,
    latency_counts bigint[] NOT NULL,
    CONSTRAINT call_measurements_check CHECK ((cardinality(latency_buckets) = cardinality(latency_counts)))
);
ALTER TABLE deputize.call_measurements ADD CONSTRAINT call_measurements_pkey PRIMARY KEY (tenant, name, day, version);
COMMENT ON TABLE deputize.call_measurements IS
    'How calls of each version ended, what they took and cost, by day. Written every few seconds by each process.';
select deputize.secure_table('call_measurements', 'select, insert, delete, update');

CREATE TABLE deputize.callbacks (
    tenant text NOT NULL,
    id uuid NOT NULL,
    request bytea NOT NULL
);
ALTER TABLE deputize.callbacks ADD CONSTRAINT callbacks_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.callbacks IS
    'Where to deliver the end of a call and with which key. Sealed, because an address may hold a secret.';
select deputize.secure_table('callbacks', 'select, insert, delete');

CREATE TABLE deputize.calls (
    tenant text NOT NULL,
    id uuid NOT NULL,
    state text NOT NULL,
    tool text NOT NULL,
    version text NOT NULL,
    tool_digest text NOT NULL,
    mutation_class text NOT NULL,
    caller_user text NOT NULL,
    caller_agent text NOT NULL,
    session text,
    fingerprint bytea NOT NULL,
    claim_scope bytea,
    claim_key bytea,
    owner uuid NOT NULL,
    owner_epoch integer DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    deadline_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    window_seconds integer NOT NULL,
    window_ends timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    error text,
    nothing_happened boolean DEFAULT false NOT NULL,
    trace text NOT NULL,
    has_callback boolean DEFAULT false NOT NULL,
    uses_resource_locks boolean DEFAULT false NOT NULL,
    needs_approval boolean DEFAULT false NOT NULL
)
PARTITION BY RANGE (id);
ALTER TABLE deputize.calls ADD CONSTRAINT calls_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.calls IS 'One row for each call that may change something, and for each run.';
select deputize.secure_table('calls', 'select, insert, update');

CREATE TABLE deputize.checkpoints (
    tenant text NOT NULL,
    call_id uuid NOT NULL,
    seq integer NOT NULL,
    epoch integer NOT NULL,
    kind text NOT NULL,
    name text,
    parent integer,
    ciphertext bytea NOT NULL,
    saved_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT checkpoints_check CHECK (((kind = 'named'::text) = (name IS NOT NULL))),
    CONSTRAINT checkpoints_kind_check CHECK ((kind = ANY (ARRAY['micro'::text, 'macro'::text, 'named'::text])))
);
ALTER TABLE deputize.checkpoints ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (tenant, call_id, seq);
COMMENT ON TABLE deputize.checkpoints IS
    'Saved states of long tools, from which anyone who takes a call over resumes it.';
select deputize.secure_table('checkpoints', 'select, insert, delete, update');

CREATE TABLE deputize.circuit_breakers (
    tenant text NOT NULL,
    service text NOT NULL,
    state text DEFAULT 'closed'::text NOT NULL,
    epoch bigint DEFAULT 0 NOT NULL,
    changed_at timestamp with time zone DEFAULT to_timestamp((0)::double precision) NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    failures timestamp with time zone[] DEFAULT '{}'::timestamp with time zone[] NOT NULL,
    success_threshold integer DEFAULT 3 NOT NULL,
    timeout_seconds integer DEFAULT 60 NOT NULL,
    half_open_max_calls integer DEFAULT 10 NOT NULL,
    successes integer DEFAULT 0 NOT NULL,
    trial_ids uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    trial_ends timestamp with time zone[] DEFAULT '{}'::timestamp with time zone[] NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    paused_until timestamp with time zone,
    CONSTRAINT circuit_breakers_check CHECK ((cardinality(trial_ids) = cardinality(trial_ends))),
    CONSTRAINT circuit_breakers_state_check CHECK ((state = ANY (ARRAY['closed'::text, 'open'::text, 'half_open'::text])))
);
ALTER TABLE deputize.circuit_breakers ADD CONSTRAINT circuit_breakers_pkey PRIMARY KEY (tenant, service);
COMMENT ON TABLE deputize.circuit_breakers IS
    'Whether calls to each external service pass. Gateways change a row under its lock, and read all that are not '
    'closed.';
select deputize.secure_table('circuit_breakers', 'select, insert, delete, update');

CREATE TABLE deputize.circuit_transitions (
    tenant text NOT NULL,
    id uuid NOT NULL,
    service text NOT NULL,
    epoch bigint NOT NULL,
    from_state text NOT NULL,
    to_state text NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    reason text NOT NULL
);
ALTER TABLE deputize.circuit_transitions ADD CONSTRAINT circuit_transitions_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.circuit_transitions IS
    'The history of circuit breakers: when each opened, tried its service again and closed, and why.';
select deputize.secure_table('circuit_transitions', 'select, insert, delete');

CREATE TABLE deputize.claims (
    tenant text NOT NULL,
    scope bytea NOT NULL,
    key bytea NOT NULL,
    call_id uuid NOT NULL
)
PARTITION BY HASH (tenant, scope, key);
ALTER TABLE deputize.claims ADD CONSTRAINT claims_pkey PRIMARY KEY (tenant, scope, key);
do $$ begin
    for i in 0..15 loop
        execute format('create table deputize.claims_%s partition of deputize.claims
                        for values with (modulus 16, remainder %s)', i, i);
    end loop;
end $$;
COMMENT ON TABLE deputize.claims IS
    'Which call owns an idempotency key. Rows are inserted, and deleted when the key is released or its window is '
    'over: see docs/decisions/0007.';
select deputize.secure_table('claims', 'select, insert, delete, update');

CREATE TABLE deputize.contract_tests (
    tenant text NOT NULL,
    id uuid NOT NULL,
    tool text NOT NULL,
    version text NOT NULL,
    digest text NOT NULL,
    verdict text NOT NULL,
    cases integer NOT NULL,
    failures integer NOT NULL,
    attestation text NOT NULL,
    tested_at timestamp with time zone NOT NULL,
    recorded_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    is_notice_due boolean DEFAULT false NOT NULL,
    CONSTRAINT contract_tests_cases_check CHECK ((cases > 0)),
    CONSTRAINT contract_tests_check CHECK (((failures >= 0) AND (failures <= cases))),
    CONSTRAINT contract_tests_verdict_check CHECK ((verdict = ANY (ARRAY['passed'::text, 'failed'::text, 'unchecked'::text])))
);
ALTER TABLE deputize.contract_tests ADD CONSTRAINT contract_tests_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.contract_tests IS
    'Results of contract tests, by the digest of the tested contract: also of versions that are not registered yet.';
select deputize.secure_table('contract_tests', 'select, insert, delete, update');

CREATE TABLE deputize.decisions (
    tenant text NOT NULL,
    id text NOT NULL,
    record bytea NOT NULL,
    first_at timestamp with time zone DEFAULT now() NOT NULL,
    last_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.decisions ADD CONSTRAINT decisions_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.decisions IS
    'Records of what decisions were made from, one per distinct question. Audit entries name the record they relied'
    ' on.';
select deputize.secure_table('decisions', 'select, insert');

CREATE TABLE deputize.deliveries (
    tenant text NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    call_id uuid NOT NULL,
    state text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    due_at timestamp with time zone,
    delivered_at timestamp with time zone,
    dead_at timestamp with time zone,
    problem text,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.deliveries ADD CONSTRAINT deliveries_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.deliveries IS
    'One row for each end a call came to, until it is delivered or given up. An unknown outcome is one end, its '
    'settlement another.';
select deputize.secure_table('deliveries', 'select, insert, delete, update');

CREATE TABLE deputize.deprecated_uses (
    tenant text NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    caller_user text NOT NULL,
    caller_agent text NOT NULL,
    day date NOT NULL,
    calls bigint NOT NULL,
    last_used_at timestamp with time zone NOT NULL
);
ALTER TABLE deputize.deprecated_uses ADD CONSTRAINT deprecated_uses_pkey PRIMARY KEY (tenant, name, version, caller_user, caller_agent, day);
COMMENT ON TABLE deputize.deprecated_uses IS
    'Who still called deprecated versions, by day. Written every few seconds by each process, not by each call.';
select deputize.secure_table('deprecated_uses', 'select, insert, delete, update');

CREATE TABLE deputize.disagreements (
    tenant text NOT NULL,
    rule text NOT NULL,
    entity bytea NOT NULL,
    id uuid NOT NULL,
    tools text[] NOT NULL,
    call_ids uuid[] NOT NULL,
    noticed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    is_notice_due boolean DEFAULT true NOT NULL
);
ALTER TABLE deputize.disagreements ADD CONSTRAINT disagreements_pkey PRIMARY KEY (tenant, rule, entity);
COMMENT ON TABLE deputize.disagreements IS
    'Things that tools say different things about and no rule resolves: who was told, once in each window.';
select deputize.secure_table('disagreements', 'select, insert, delete, update');

CREATE TABLE deputize.epochs (
    tenant text NOT NULL,
    registry bigint DEFAULT 0 NOT NULL,
    policy bigint DEFAULT 0 NOT NULL,
    revocation bigint DEFAULT 0 NOT NULL
);
ALTER TABLE deputize.epochs ADD CONSTRAINT epochs_pkey PRIMARY KEY (tenant);
COMMENT ON TABLE deputize.epochs IS
    'How often each kind of authority of a tenant changed. Written under the tenant''s exclusive barrier lock, read'
    ' under the shared one by every batch.';
select deputize.secure_table('epochs', 'select, insert, update');

CREATE TABLE deputize.erasures (
    tenant text NOT NULL,
    id uuid NOT NULL,
    subject text,
    names text[],
    pseudonym text,
    last_entry uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    requested_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT erasures_forget_the_person CHECK ((((ended_at IS NULL) = (subject IS NOT NULL)) AND ((subject IS NULL) = (names IS NULL)) AND ((subject IS NULL) = (pseudonym IS NULL))))
);
ALTER TABLE deputize.erasures ADD CONSTRAINT erasures_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.erasures IS
    'Erasures of people. A row names its person only until everything else is erased.';
select deputize.secure_table('erasures', 'select, insert');

CREATE TABLE deputize.event_positions (
    tenant text NOT NULL,
    sink text NOT NULL,
    next_index bigint NOT NULL,
    CONSTRAINT event_positions_next_index_check CHECK ((next_index >= 0))
);
ALTER TABLE deputize.event_positions ADD CONSTRAINT event_positions_pkey PRIMARY KEY (tenant, sink);
COMMENT ON TABLE deputize.event_positions IS
    'How far each sink has got in each tenant''s log: the index of the first leaf that it has not acknowledged.';
select deputize.secure_table('event_positions', 'select, insert, update');

CREATE TABLE deputize.event_sinks (
    name text NOT NULL,
    owner uuid,
    epoch bigint DEFAULT 0 NOT NULL,
    expires_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    sent_count bigint DEFAULT 0 NOT NULL,
    sent_at timestamp with time zone,
    failures integer DEFAULT 0 NOT NULL,
    last_error text,
    failed_at timestamp with time zone
);
ALTER TABLE deputize.event_sinks ADD CONSTRAINT event_sinks_pkey PRIMARY KEY (name);
COMMENT ON TABLE deputize.event_sinks IS
    'Where events are sent: the lease of the one process that sends to each sink, and how its last attempts went.';
GRANT SELECT,INSERT,UPDATE ON TABLE deputize.event_sinks TO deputize_writer;

CREATE TABLE deputize.grants (
    tenant text NOT NULL,
    id uuid NOT NULL,
    parent uuid,
    grantor text NOT NULL,
    agents text[] NOT NULL,
    scopes text[] NOT NULL,
    tools bytea,
    ceiling text,
    task text,
    constraints bytea,
    not_after timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT grants_ceiling_check CHECK ((ceiling = ANY (ARRAY['read'::text, 'write'::text, 'destructive'::text])))
);
ALTER TABLE deputize.grants ADD CONSTRAINT grants_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.grants IS
    'Delegations: what a person lent to an agent, for which tools and until when. Tokens are never stored.';
select deputize.secure_table('grants', 'select, insert');

CREATE TABLE deputize.leases (
    boot uuid NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    release text NOT NULL
);
ALTER TABLE deputize.leases ADD CONSTRAINT leases_pkey PRIMARY KEY (boot);
COMMENT ON TABLE deputize.leases IS
    'One lease per start of a process. A process that cannot renew its lease dispatches nothing.';
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE deputize.leases TO deputize_writer;

CREATE TABLE deputize.legal_holds (
    tenant text NOT NULL,
    id uuid NOT NULL,
    kind text NOT NULL,
    subject text,
    pseudonym text,
    call_id uuid,
    from_at timestamp with time zone,
    to_at timestamp with time zone,
    first_id uuid,
    before_id uuid,
    reason text NOT NULL,
    placed_by text NOT NULL,
    placed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT legal_holds_name_one_thing CHECK ((((kind = 'subject'::text) = (subject IS NOT NULL)) AND ((kind = 'subject'::text) = (pseudonym IS NOT NULL)) AND ((kind = 'call'::text) = (call_id IS NOT NULL)) AND ((kind = 'period'::text) = (first_id IS NOT NULL)) AND ((kind = 'period'::text) = (before_id IS NOT NULL)) AND ((kind = 'period'::text) = (from_at IS NOT NULL)) AND (kind = ANY (ARRAY['subject'::text, 'call'::text, 'period'::text])) AND ((before_id IS NULL) OR (first_id < before_id))))
);
ALTER TABLE deputize.legal_holds ADD CONSTRAINT legal_holds_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.legal_holds IS
    'What must not be erased or deleted, until the hold is removed: the data of a person, of a call or of a period.';
select deputize.secure_table('legal_holds', 'select, insert, delete');

CREATE TABLE deputize.lineages (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    number integer NOT NULL,
    began_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    went_back_at timestamp with time zone,
    went_back_reason text,
    CONSTRAINT lineages_number_check CHECK ((number > 0))
);
ALTER TABLE deputize.lineages ADD CONSTRAINT lineages_number_key UNIQUE (number);
ALTER TABLE deputize.lineages ADD CONSTRAINT lineages_pkey PRIMARY KEY (id);
COMMENT ON TABLE deputize.lineages IS
    'Histories of this database; the one with the highest number is current. A point-in-time restore makes the '
    'database go back, and a new lineage begins when a person confirms that it is to be used.';
GRANT SELECT,INSERT,UPDATE ON TABLE deputize.lineages TO deputize_writer;

CREATE TABLE deputize.log_backlogs (
    tenant text NOT NULL,
    after_id uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL
);
ALTER TABLE deputize.log_backlogs ADD CONSTRAINT log_backlogs_pkey PRIMARY KEY (tenant);
COMMENT ON TABLE deputize.log_backlogs IS
    'Tenants with entries from before the log, and how far these have been queued.';
select deputize.secure_table('log_backlogs', 'select, delete, update');

CREATE TABLE deputize.log_checkpoints (
    tenant text NOT NULL,
    size bigint NOT NULL,
    root bytea NOT NULL,
    note bytea NOT NULL,
    signed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT log_checkpoints_root_check CHECK ((octet_length(root) = 32)),
    CONSTRAINT log_checkpoints_size_check CHECK ((size > 0))
);
ALTER TABLE deputize.log_checkpoints ADD CONSTRAINT log_checkpoints_pkey PRIMARY KEY (tenant, size);
COMMENT ON TABLE deputize.log_checkpoints IS 'What each log signed, one root for each size.';
select deputize.secure_table('log_checkpoints', 'select, insert');

CREATE TABLE deputize.log_expiries (
    tenant text NOT NULL,
    end_index bigint NOT NULL,
    entry_id uuid NOT NULL,
    expired_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT log_expiries_end_index_check CHECK ((end_index > 0))
);
ALTER TABLE deputize.log_expiries ADD CONSTRAINT log_expiries_pkey PRIMARY KEY (tenant, end_index);
COMMENT ON TABLE deputize.log_expiries IS
    'How far each log has expired: the entries before end_index were deleted, and their hashes stay. entry_id says '
    'so in the log.';
select deputize.secure_table('log_expiries', 'select');

CREATE TABLE deputize.log_keys (
    tenant text NOT NULL,
    key_id text NOT NULL,
    verifier_key text NOT NULL,
    sealed bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    signs_until timestamp with time zone
);
ALTER TABLE deputize.log_keys ADD CONSTRAINT log_keys_pkey PRIMARY KEY (tenant, key_id);
COMMENT ON TABLE deputize.log_keys IS
    'The keys of each tenant''s log, sealed, with the public half as text. The name in it is the name of the log.';
select deputize.secure_table('log_keys', 'select, insert, update');

CREATE TABLE deputize.log_leaves (
    tenant text NOT NULL,
    leaf_index bigint NOT NULL,
    entry_id uuid NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT log_leaves_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT log_leaves_leaf_index_check CHECK ((leaf_index >= 0))
);
ALTER TABLE deputize.log_leaves ADD CONSTRAINT log_leaves_pkey PRIMARY KEY (tenant, leaf_index);
COMMENT ON TABLE deputize.log_leaves IS
    'The order of entries in their tenant''s log, and the hash of each as a leaf.';
select deputize.secure_table('log_leaves', 'select, insert');

CREATE TABLE deputize.log_nodes (
    tenant text NOT NULL,
    level smallint NOT NULL,
    node_index bigint NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT log_nodes_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT log_nodes_level_check CHECK (((level >= 1) AND (level <= 7))),
    CONSTRAINT log_nodes_node_index_check CHECK ((node_index >= 0))
);
ALTER TABLE deputize.log_nodes ADD CONSTRAINT log_nodes_pkey PRIMARY KEY (tenant, level, node_index);
COMMENT ON TABLE deputize.log_nodes IS
    'The hashes of complete subtrees of 256^level leaves: what tiles above the leaves show.';
select deputize.secure_table('log_nodes', 'select, insert');

CREATE TABLE deputize.log_queue (
    tenant text NOT NULL,
    entry_id uuid NOT NULL,
    number bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000');
ALTER TABLE deputize.log_queue ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME deputize.log_queue_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE deputize.log_queue ADD CONSTRAINT log_queue_pkey PRIMARY KEY (tenant, number);
COMMENT ON TABLE deputize.log_queue IS
    'Entries that are not in their tenant''s log yet. The insertion of an entry adds it, in the same transaction.';
select deputize.secure_table('log_queue', 'select, insert, delete');

CREATE TABLE deputize.log_sequencer (
    only_row boolean DEFAULT true NOT NULL,
    owner uuid,
    epoch bigint DEFAULT 0 NOT NULL,
    expires_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT log_sequencer_only_row_check CHECK (only_row)
);
ALTER TABLE deputize.log_sequencer ADD CONSTRAINT log_sequencer_pkey PRIMARY KEY (only_row);
COMMENT ON TABLE deputize.log_sequencer IS
    'The lease of the one process that appends entries to logs. Each of its transactions updates this row.';
GRANT SELECT,UPDATE ON TABLE deputize.log_sequencer TO deputize_writer;

CREATE TABLE deputize.log_witnessed_checkpoints (
    tenant text NOT NULL,
    size bigint NOT NULL,
    note bytea NOT NULL,
    cosignatures smallint NOT NULL,
    witnessed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT log_witnessed_checkpoints_cosignatures_check CHECK ((cosignatures > 0)),
    CONSTRAINT log_witnessed_checkpoints_size_check CHECK ((size > 0))
);
ALTER TABLE deputize.log_witnessed_checkpoints ADD CONSTRAINT log_witnessed_checkpoints_pkey PRIMARY KEY (tenant, size);
COMMENT ON TABLE deputize.log_witnessed_checkpoints IS
    'Checkpoints that enough witnesses cosigned, with their cosignatures.';
select deputize.secure_table('log_witnessed_checkpoints', 'select, insert');

CREATE TABLE deputize.notices (
    tenant text NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    approval_id uuid NOT NULL,
    grp text NOT NULL,
    kind text NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    problem text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT notices_kind_check CHECK ((kind = ANY (ARRAY['asked'::text, 'escalated'::text, 'reminder'::text, 'broken-glass'::text])))
);
ALTER TABLE deputize.notices ADD CONSTRAINT notices_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.notices IS
    'What a group has to be notified of, written by the commit that makes it true. write_notifications makes '
    'notifications of them.';
select deputize.secure_table('notices', 'select, insert, delete, update');

CREATE TABLE deputize.notification_windows (
    tenant text NOT NULL,
    grp text NOT NULL,
    window_ends timestamp with time zone DEFAULT now() NOT NULL,
    sent_count integer DEFAULT 0 NOT NULL
);
ALTER TABLE deputize.notification_windows ADD CONSTRAINT notification_windows_pkey PRIMARY KEY (tenant, grp);
COMMENT ON TABLE deputize.notification_windows IS
    'How many notifications a group got of late. Past a few, the rest waits for the end of the window and becomes a'
    ' digest.';
select deputize.secure_table('notification_windows', 'select, insert, delete, update');

CREATE TABLE deputize.notifications (
    tenant text NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    grp text NOT NULL,
    receiver bytea NOT NULL,
    approval_id uuid,
    kind text NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    problem text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT notifications_check CHECK (((kind = 'digest'::text) = (approval_id IS NULL))),
    CONSTRAINT notifications_kind_check CHECK ((kind = ANY (ARRAY['asked'::text, 'escalated'::text, 'reminder'::text, 'broken-glass'::text, 'digest'::text, 'contract-test'::text, 'disagreement'::text])))
);
ALTER TABLE deputize.notifications ADD CONSTRAINT notifications_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.notifications IS
    'Messages to receivers of groups, until they are sent or given up. A digest tells of everything that waits for '
    'the group when it is sent.';
select deputize.secure_table('notifications', 'select, insert, delete, update');

CREATE TABLE deputize.observed_values (
    tenant text NOT NULL,
    subject text NOT NULL,
    rule text NOT NULL,
    entity bytea NOT NULL,
    tool text NOT NULL,
    authority_rank integer NOT NULL,
    call_id uuid NOT NULL,
    sealed bytea NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
ALTER TABLE deputize.observed_values ADD CONSTRAINT observed_values_pkey PRIMARY KEY (tenant, subject, rule, entity, tool);
COMMENT ON TABLE deputize.observed_values IS
    'The newest value that each tool told a user about a thing, by consistency rule. Sealed; lives for at most a '
    'day.';
select deputize.secure_table('observed_values', 'select, insert, delete, update');

CREATE TABLE deputize.periodic_tasks (
    name text NOT NULL,
    begun_at timestamp with time zone NOT NULL
);
ALTER TABLE deputize.periodic_tasks ADD CONSTRAINT periodic_tasks_pkey PRIMARY KEY (name);
COMMENT ON TABLE deputize.periodic_tasks IS
    'When each periodic task was last begun, so that one of any number of processes does it.';
GRANT SELECT,INSERT,UPDATE ON TABLE deputize.periodic_tasks TO deputize_writer;

CREATE TABLE deputize.policies (
    tenant text NOT NULL,
    changed_epoch bigint NOT NULL,
    digest text NOT NULL,
    files bytea NOT NULL,
    facts bytea NOT NULL,
    put_by text NOT NULL,
    put_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.policies ADD CONSTRAINT policies_pkey PRIMARY KEY (tenant, changed_epoch);
COMMENT ON TABLE deputize.policies IS
    'Every policy set that was ever active. The one with the newest epoch is active now; a set without files stands'
    ' for the default set.';
select deputize.secure_table('policies', 'select, insert');

CREATE TABLE deputize.policy_proposals (
    tenant text NOT NULL,
    digest text NOT NULL,
    base_epoch bigint NOT NULL,
    files bytea NOT NULL,
    proposed_by text NOT NULL,
    proposed_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
ALTER TABLE deputize.policy_proposals ADD CONSTRAINT policy_proposals_pkey PRIMARY KEY (tenant, digest);
COMMENT ON TABLE deputize.policy_proposals IS
    'Sets of policies that one operator proposed and another must confirm. base_epoch is the policy epoch that they'
    ' would change: a proposal counts only while that is the current one.';
select deputize.secure_table('policy_proposals', 'select, insert, delete, update');

CREATE TABLE deputize.primary_issuers (
    tenant text NOT NULL,
    issuer text NOT NULL,
    chosen_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT primary_issuers_issuer_check CHECK (((issuer <> ''::text) AND (issuer !~ '[[:space:][:cntrl:]]'::text)))
);
ALTER TABLE deputize.primary_issuers ADD CONSTRAINT primary_issuers_pkey PRIMARY KEY (tenant);
COMMENT ON TABLE deputize.primary_issuers IS
    'The issuer whose subjects a tenant stores by their bare names; subjects of others are stored with their '
    'issuer. Chosen once and never changed, because that would give the rows of one person to another.';
select deputize.secure_table('primary_issuers', 'select, insert');

CREATE TABLE deputize.progress (
    tenant text NOT NULL,
    id uuid NOT NULL,
    seq integer NOT NULL,
    report bytea NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    partial boolean DEFAULT false NOT NULL
);
ALTER TABLE deputize.progress ADD CONSTRAINT progress_pkey PRIMARY KEY (tenant, id, seq);
COMMENT ON TABLE deputize.progress IS 'Progress reports and partial results of runs, sealed.';
select deputize.secure_table('progress', 'select, insert, delete, update');

CREATE TABLE deputize.recent_measurements (
    tenant text NOT NULL,
    minute timestamp with time zone NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    calls bigint NOT NULL,
    errors bigint NOT NULL,
    timeouts bigint NOT NULL,
    max_latency_us bigint NOT NULL,
    latency_buckets smallint[] NOT NULL,
    latency_counts bigint[] NOT NULL,
    CONSTRAINT recent_measurements_check CHECK ((cardinality(latency_buckets) = cardinality(latency_counts)))
);
ALTER TABLE deputize.recent_measurements ADD CONSTRAINT recent_measurements_pkey PRIMARY KEY (tenant, minute, name, version);
COMMENT ON TABLE deputize.recent_measurements IS
    'How calls of each version ended and what they took in the last hours, by minute. Written with '
    'call_measurements.';
select deputize.secure_table('recent_measurements', 'select, insert, delete, update');

CREATE TABLE deputize.reconciliations (
    tenant text NOT NULL,
    id uuid NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    due_at timestamp with time zone NOT NULL,
    generation integer DEFAULT 0 NOT NULL
);
ALTER TABLE deputize.reconciliations ADD CONSTRAINT reconciliations_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.reconciliations IS
    'One row for each call whose outcome is unknown: how often it was checked, and when to check again.';
select deputize.secure_table('reconciliations', 'select, insert, delete, update');

CREATE TABLE deputize.resource_locks (
    tenant text NOT NULL,
    call_id uuid NOT NULL,
    namespace text NOT NULL,
    resource text NOT NULL,
    scope text NOT NULL COLLATE pg_catalog."C",
    scope_prefix text GENERATED ALWAYS AS (split_part(scope, '*'::text, 1)) STORED COLLATE pg_catalog."C",
    is_pattern boolean GENERATED ALWAYS AS ((strpos(scope, '*'::text) > 0)) STORED,
    capacity integer NOT NULL,
    priority smallint NOT NULL,
    requested_at timestamp with time zone DEFAULT now() NOT NULL,
    is_held boolean DEFAULT false NOT NULL,
    woken_at timestamp with time zone,
    released_at timestamp with time zone
);
ALTER TABLE deputize.resource_locks ADD CONSTRAINT resource_locks_pkey PRIMARY KEY (tenant, call_id, namespace, resource, scope);
COMMENT ON TABLE deputize.resource_locks IS 'Locks that runs hold or wait for.';
select deputize.secure_table('resource_locks', 'select, insert, delete, update');

CREATE TABLE deputize.result_chunks (
    tenant text NOT NULL,
    reference text NOT NULL,
    number integer NOT NULL,
    sealed bytea NOT NULL,
    CONSTRAINT result_chunks_number_check CHECK ((number >= 0))
);
ALTER TABLE ONLY deputize.result_chunks ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE deputize.result_chunks ADD CONSTRAINT result_chunks_pkey PRIMARY KEY (tenant, reference, number);
COMMENT ON TABLE deputize.result_chunks IS
    'The parts of stored results, sealed one by one, so that each is read without the rest.';
select deputize.secure_table('result_chunks', 'select, insert, delete');

CREATE TABLE deputize.results (
    tenant text NOT NULL,
    reference text NOT NULL,
    call_id uuid NOT NULL,
    tool text NOT NULL,
    caller_user text NOT NULL,
    caller_agents text[] NOT NULL,
    bytes bigint NOT NULL,
    is_redacted boolean NOT NULL,
    sealed bytea,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT results_bytes_check CHECK ((bytes >= 0))
);
ALTER TABLE deputize.results ADD CONSTRAINT results_pkey PRIMARY KEY (tenant, reference);
COMMENT ON TABLE deputize.results IS
    'Results too long or too sensitive to be given whole: who may read them, and until when.';
select deputize.secure_table('results', 'select, insert, delete, update');

CREATE TABLE deputize.revocations (
    tenant text NOT NULL,
    kind text NOT NULL,
    value text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    revoked_at timestamp with time zone DEFAULT now() NOT NULL,
    revoked_by text NOT NULL,
    changed_epoch bigint NOT NULL,
    CONSTRAINT revocations_kind_check CHECK ((kind = ANY (ARRAY['token'::text, 'subject'::text, 'user'::text, 'agent'::text, 'grant'::text])))
);
ALTER TABLE deputize.revocations ADD CONSTRAINT revocations_pkey PRIMARY KEY (tenant, kind, value);
COMMENT ON TABLE deputize.revocations IS 'Tokens, users, agents and grants that are no longer accepted.';
select deputize.secure_table('revocations', 'select, insert, update');

CREATE TABLE deputize.runs (
    tenant text NOT NULL,
    id uuid NOT NULL,
    priority smallint NOT NULL,
    caller bytea NOT NULL,
    not_after timestamp with time zone,
    release text NOT NULL,
    takeovers integer DEFAULT 0 NOT NULL,
    enqueue_count integer DEFAULT 0 NOT NULL,
    queued_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    untouched_epoch integer DEFAULT 0 NOT NULL,
    unable_since timestamp with time zone
);
ALTER TABLE deputize.runs ADD CONSTRAINT runs_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.runs IS
    'What a worker needs to execute a call later: its caller, its priority and its end.';
select deputize.secure_table('runs', 'select, insert, update');

CREATE TABLE deputize.sealed_payloads (
    tenant text NOT NULL,
    id uuid NOT NULL,
    kind text NOT NULL,
    ciphertext bytea NOT NULL,
    CONSTRAINT sealed_payloads_kind_check CHECK ((kind = ANY (ARRAY['input'::text, 'outcome'::text, 'input_responses'::text])))
)
PARTITION BY RANGE (id);
ALTER TABLE deputize.sealed_payloads ADD CONSTRAINT sealed_payloads_pkey PRIMARY KEY (tenant, id, kind);
COMMENT ON TABLE deputize.sealed_payloads IS
    'What is needed to replay or continue a call, sealed with the tenant''s key and deleted when its retention '
    'ends.';
select deputize.secure_table('sealed_payloads', 'select, insert, update');

CREATE TABLE deputize.secrets (
    tenant text NOT NULL,
    name text NOT NULL,
    sealed bytea NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_by text NOT NULL
);
ALTER TABLE deputize.secrets ADD CONSTRAINT secrets_pkey PRIMARY KEY (tenant, name);
COMMENT ON TABLE deputize.secrets IS
    'Secrets of tools, sealed with the tenant''s key, for gateways without a vault.';
select deputize.secure_table('secrets', 'select, insert, delete, update');

CREATE TABLE deputize.server_changes (
    tenant text NOT NULL,
    server text NOT NULL,
    item text NOT NULL,
    digest text NOT NULL,
    definition bytea,
    kind text NOT NULL,
    flags bytea NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL,
    state text DEFAULT 'open'::text NOT NULL,
    decided_by text,
    decided_at timestamp with time zone,
    reason text,
    CONSTRAINT server_changes_check CHECK (((kind <> 'removed'::text) OR (definition IS NULL))),
    CONSTRAINT server_changes_check1 CHECK (((state = ANY (ARRAY['accepted'::text, 'rejected'::text])) = (decided_by IS NOT NULL))),
    CONSTRAINT server_changes_item_check CHECK (((item = 'instructions'::text) OR (item ~ '^(tool|resource|template|prompt|method):.'::text))),
    CONSTRAINT server_changes_kind_check CHECK ((kind = ANY (ARRAY['changed'::text, 'added'::text, 'removed'::text, 'flagged'::text]))),
    CONSTRAINT server_changes_state_check CHECK ((state = ANY (ARRAY['open'::text, 'accepted'::text, 'rejected'::text, 'gone'::text])))
);
ALTER TABLE deputize.server_changes ADD CONSTRAINT server_changes_pkey PRIMARY KEY (tenant, server, item, digest);
COMMENT ON TABLE deputize.server_changes IS
    'What a server declared that differs from its pins, once per item and content.';
select deputize.secure_table('server_changes', 'select, insert, update');

CREATE TABLE deputize.server_clients (
    tenant text NOT NULL,
    server text NOT NULL,
    issuer text NOT NULL,
    sealed bytea NOT NULL,
    registered_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.server_clients ADD CONSTRAINT server_clients_pkey PRIMARY KEY (tenant, server, issuer);
COMMENT ON TABLE deputize.server_clients IS
    'OAuth clients of this gateway at the authorization servers of MCP servers where it registered itself, sealed.';
select deputize.secure_table('server_clients', 'select, insert, delete, update');

CREATE TABLE deputize.server_effects (
    tenant text NOT NULL,
    server text NOT NULL,
    item text NOT NULL,
    digest text NOT NULL,
    effects text NOT NULL,
    confirmed_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT server_effects_effects_check CHECK ((effects = ANY (ARRAY['read'::text, 'write'::text, 'destructive'::text]))),
    CONSTRAINT server_effects_item_check CHECK ((item ~~ 'tool:_%'::text))
);
ALTER TABLE deputize.server_effects ADD CONSTRAINT server_effects_pkey PRIMARY KEY (tenant, server, item);
COMMENT ON TABLE deputize.server_effects IS
    'What the tools of a server do, as an operator confirmed it for exactly one definition of each.';
select deputize.secure_table('server_effects', 'select, insert, delete, update');

CREATE TABLE deputize.server_links (
    tenant text NOT NULL,
    server text NOT NULL,
    user_name text NOT NULL,
    sealed bytea NOT NULL,
    requested_scopes text[] NOT NULL,
    missing_scopes text[] DEFAULT '{}'::text[] NOT NULL,
    expires_at timestamp with time zone,
    linked_at timestamp with time zone DEFAULT now() NOT NULL,
    renewed_at timestamp with time zone DEFAULT now() NOT NULL,
    broken_reason text
);
ALTER TABLE deputize.server_links ADD CONSTRAINT server_links_pkey PRIMARY KEY (tenant, server, user_name);
COMMENT ON TABLE deputize.server_links IS
    'Linked accounts: one for each person and server, with tokens for that server and that person''s calls only, '
    'sealed.';
select deputize.secure_table('server_links', 'select, insert, delete, update');

CREATE TABLE deputize.server_pins (
    tenant text NOT NULL,
    server text NOT NULL,
    item text NOT NULL,
    digest text NOT NULL,
    definition bytea NOT NULL,
    tool text,
    version text,
    accepted_by text NOT NULL,
    accepted_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT server_pins_item_check CHECK (((item = 'instructions'::text) OR (item ~ '^(tool|resource|template|prompt|method):.'::text))),
    CONSTRAINT server_pins_registered CHECK (((((item ~~ 'tool:%'::text) OR (item ~~ 'method:%'::text)) = (tool IS NOT NULL)) AND ((tool IS NULL) = (version IS NULL))))
);
ALTER TABLE deputize.server_pins ADD CONSTRAINT server_pins_pkey PRIMARY KEY (tenant, server, item);
COMMENT ON TABLE deputize.server_pins IS 'The definitions of a server''s items that someone accepted.';
select deputize.secure_table('server_pins', 'select, insert, delete, update');

CREATE TABLE deputize.server_revocations (
    tenant text NOT NULL,
    id uuid NOT NULL,
    server text NOT NULL,
    sealed bytea NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.server_revocations ADD CONSTRAINT server_revocations_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.server_revocations IS
    'Tokens of links that are deleted, sealed, until they are revoked at their authorization server or that is '
    'given up. They name no person.';
select deputize.secure_table('server_revocations', 'select, insert, delete, update');

CREATE TABLE deputize.server_sign_ins (
    tenant text NOT NULL,
    server text NOT NULL,
    user_name text NOT NULL,
    state_digest bytea NOT NULL,
    sealed bytea NOT NULL,
    begun_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.server_sign_ins ADD CONSTRAINT server_sign_ins_pkey PRIMARY KEY (tenant, server, user_name);
COMMENT ON TABLE deputize.server_sign_ins IS
    'Account links that were begun and not finished: one for each person and server, finished at most once.';
select deputize.secure_table('server_sign_ins', 'select, insert, delete, update');

CREATE TABLE deputize.signing_keys (
    tenant text NOT NULL,
    kid text NOT NULL,
    sealed bytea NOT NULL,
    public_jwk bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    retired_at timestamp with time zone
);
ALTER TABLE deputize.signing_keys ADD CONSTRAINT signing_keys_pkey PRIMARY KEY (tenant, kid);
COMMENT ON TABLE deputize.signing_keys IS
    'Keys this gateway signs tokens with for each tenant, sealed with the tenant''s key.';
select deputize.secure_table('signing_keys', 'select, insert, update');

CREATE TABLE deputize.subjects (
    tenant text NOT NULL,
    subject text NOT NULL,
    salt bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.subjects ADD CONSTRAINT subjects_pkey PRIMARY KEY (tenant, subject);
COMMENT ON TABLE deputize.subjects IS
    'Salts behind the pseudonyms in audit entries. Deleting a row makes its subject unlinkable.';
select deputize.secure_table('subjects', 'select, insert, delete');

CREATE TABLE deputize.switches (
    tenant text NOT NULL,
    kind text NOT NULL,
    value text NOT NULL,
    off_epoch bigint NOT NULL,
    on_epoch bigint,
    reason text DEFAULT ''::text NOT NULL,
    turned_by text NOT NULL,
    turned_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT switches_kind_check CHECK ((kind = ANY (ARRAY['tenant'::text, 'agent'::text, 'tool'::text])))
);
ALTER TABLE deputize.switches ADD CONSTRAINT switches_pkey PRIMARY KEY (tenant, kind, value, off_epoch);
COMMENT ON TABLE deputize.switches IS
    'Kill switches. A row is off from off_epoch until on_epoch, both of them revocation epochs.';
select deputize.secure_table('switches', 'select, insert, update');

CREATE TABLE deputize.tenant_keys (
    tenant text NOT NULL,
    version integer NOT NULL,
    wrapped bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    active_from timestamp with time zone DEFAULT now() NOT NULL,
    master_id text
);
ALTER TABLE deputize.tenant_keys ADD CONSTRAINT tenant_keys_pkey PRIMARY KEY (tenant, version);
COMMENT ON TABLE deputize.tenant_keys IS
    'Data keys of tenants, wrapped by the master key. Deleting a row erases everything sealed with it.';
select deputize.secure_table('tenant_keys', 'select, insert, update');

CREATE TABLE deputize.tenants (
    tenant text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT tenants_tenant_check CHECK ((tenant ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
);
ALTER TABLE deputize.tenants ADD CONSTRAINT tenants_pkey PRIMARY KEY (tenant);
COMMENT ON TABLE deputize.tenants IS 'Every tenant there is.';
select deputize.secure_table('tenants', 'select, insert');

CREATE TABLE deputize.human_tasks (
    tenant text NOT NULL,
    id uuid NOT NULL,
    kind text NOT NULL,
    call_id uuid NOT NULL,
    state text DEFAULT 'open'::text NOT NULL,
    question bytea NOT NULL,
    due_at timestamp with time zone,
    opened_at timestamp with time zone DEFAULT now() NOT NULL,
    resolved_at timestamp with time zone,
    resolved_by text,
    resolution text,
    reason text,
    CONSTRAINT human_tasks_check CHECK (((state = 'open'::text) = (resolved_at IS NULL))),
    CONSTRAINT human_tasks_kind_check CHECK ((kind = ANY (ARRAY['reconcile'::text, 'approval'::text]))),
    CONSTRAINT human_tasks_state_check CHECK ((state = ANY (ARRAY['open'::text, 'resolved'::text, 'expired'::text])))
);
ALTER TABLE deputize.human_tasks ADD CONSTRAINT human_tasks_pkey PRIMARY KEY (tenant, id);
COMMENT ON TABLE deputize.human_tasks IS
    'Reconciliation tasks (kind reconcile) and approval requests (kind approval; more in approvals under the same '
    'id).';
select deputize.secure_table('human_tasks', 'select, insert, update');

CREATE TABLE deputize.tool_versions (
    tenant text NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    digest text NOT NULL,
    contract bytea NOT NULL,
    state text NOT NULL,
    registered_at timestamp with time zone DEFAULT now() NOT NULL,
    registered_by text NOT NULL,
    changed_epoch bigint NOT NULL,
    before_epoch bigint DEFAULT 0 NOT NULL,
    deprecated_at timestamp with time zone,
    removal_at timestamp with time zone,
    successor text,
    migration_guide text,
    reported_at timestamp with time zone,
    CONSTRAINT tool_versions_state_check CHECK ((state = ANY (ARRAY['draft'::text, 'available'::text, 'disabled'::text, 'requires_setup'::text, 'deferred'::text, 'deprecated'::text, 'retired'::text])))
);
ALTER TABLE deputize.tool_versions ADD CONSTRAINT tool_versions_pkey PRIMARY KEY (tenant, name, version);
COMMENT ON TABLE deputize.tool_versions IS
    'Contracts of tools by version, with their state and the registry epoch of its last change.';
select deputize.secure_table('tool_versions', 'select, insert, update');

CREATE TABLE deputize.tools (
    tenant text NOT NULL,
    name text NOT NULL,
    outward_name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.tools ADD CONSTRAINT tools_pkey PRIMARY KEY (tenant, name);
ALTER TABLE deputize.tools ADD CONSTRAINT tools_tenant_outward_name_key UNIQUE (tenant, outward_name);
COMMENT ON TABLE deputize.tools IS 'Names of tools, each with the name that clients see.';
select deputize.secure_table('tools', 'select, insert');

CREATE TABLE deputize.votes (
    tenant text NOT NULL,
    id uuid NOT NULL,
    voter text NOT NULL,
    approve boolean NOT NULL,
    counts integer[] NOT NULL,
    methods text[] DEFAULT '{}'::text[] NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    break_glass boolean DEFAULT false NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE deputize.votes ADD CONSTRAINT votes_pkey PRIMARY KEY (tenant, id, voter);
COMMENT ON TABLE deputize.votes IS 'Decisions of approvers, one per person and approval request.';
select deputize.secure_table('votes', 'select, insert, update');

CREATE TABLE deputize.workers (
    boot uuid NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    release text NOT NULL
);
ALTER TABLE deputize.workers ADD CONSTRAINT workers_pkey PRIMARY KEY (boot);
COMMENT ON TABLE deputize.workers IS
    'Processes that execute runs. Apart from leases, because a gateway leaves nothing to take over when its lease '
    'ends.';
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE deputize.workers TO deputize_writer;
