-- Approval requests. A request is bound to one exact call. The call is a row that waits: its run is given to the engine by
-- the commit in which the last approver who is needed approves.

create table deputize.approvals (
    tenant         text not null,
    -- That of its ticket.
    id             uuid not null,
    call_id        uuid not null,
    state          text not null default 'open'
        check (state in ('open', 'approved', 'used', 'denied', 'expired', 'void', 'canceled')),
    -- A keyed digest of exactly what was requested: compared on each decision and when the call begins.
    binding        bytea not null,
    -- What has to come together, as JSON: for each rule its groups, how many people, and how they sign in.
    demands        bytea not null,
    -- What approvers are shown, sealed: redacted arguments, and what the call would change.
    presentation   bytea not null,
    preview_digest bytea,
    previewed_at   timestamptz,
    fresh_seconds  integer,
    -- Everybody behind the call: none of them may decide.
    chain          text[] not null,
    tool           text not null,
    -- Equal for calls that differ only in their arguments.
    group_key      text not null,
    -- How far it was escalated, and after how many seconds each further level is reached.
    level          integer not null default 0,
    levels         float8[] not null,
    reminders_sent integer not null default 0,
    opened_at      timestamptz not null default now(),
    expires_at     timestamptz not null,
    -- When something is due: the next level, a reminder, the end. Null once it is closed.
    next_at        timestamptz,
    closed_at      timestamptz,
    primary key (tenant, id)
);
create index approvals_of_call on deputize.approvals (tenant, call_id);
create index approvals_due on deputize.approvals (next_at) where next_at is not null;
comment on table deputize.approvals is 'Approval requests: what each is bound to, what it requires and where it stands.';
select deputize.secure_table('approvals', 'select, insert, update');

create table deputize.approval_groups (
    tenant text not null,
    grp    text not null,
    id     uuid not null,
    primary key (tenant, grp, id)
);
create index approval_groups_of_ticket on deputize.approval_groups (tenant, id);
comment on table deputize.approval_groups is 'Which groups may see and decide an open approval request now.';
select deputize.secure_table('approval_groups', 'select, insert, delete');

create table deputize.votes (
    tenant  text not null,
    id      uuid not null,
    voter   text not null,
    approve boolean not null,
    -- Which demands this vote counts for, by their position, and how the voter had signed in.
    counts  integer[] not null,
    methods text[] not null default '{}',
    reason  text not null default '',
    break_glass boolean not null default false,
    at      timestamptz not null default now(),
    primary key (tenant, id, voter)
);
comment on table deputize.votes is 'Decisions of approvers, one per person and approval request.';
select deputize.secure_table('votes', 'select, insert, update');

create table deputize.notices (
    tenant     text not null,
    id         uuid not null default gen_random_uuid(),
    ticket     uuid not null,
    grp        text not null,
    kind       text not null check (kind in ('asked', 'escalated', 'reminder', 'broken-glass')),
    due_at     timestamptz not null default now(),
    tries      integer not null default 0,
    problem    text,
    created_at timestamptz not null default now(),
    primary key (tenant, id)
);
create index notices_due on deputize.notices (due_at);
create index notices_of_group on deputize.notices (tenant, grp, due_at);
comment on table deputize.notices is
    'What a group has to be notified of, written by the commit that makes it true. write_notifications makes '
    'notifications of them.';
select deputize.secure_table('notices', 'select, insert, update, delete');

-- How often approvers are reminded is a setting of the gateways, so the first check comes soon and finds the next one.
create function deputize.schedule_first_check() returns trigger language plpgsql as $$
begin
    new.next_at := least(new.next_at, now() + interval '1 minute');
    return new;
end $$;
comment on function deputize.schedule_first_check is 'Trigger: check a new approval request within a minute.';
create trigger approvals_schedule_first_check before insert on deputize.approvals
    for each row execute function deputize.schedule_first_check();

create function deputize.open_approval(
    p_tenant text, p_call_id uuid, approval_id uuid, approval_binding bytea, approval_demands bytea,
    approval_presentation bytea, approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[],
    approval_tool text, approval_group_key text, approval_groups text[], approval_levels float8[],
    approval_expires_at timestamptz
) returns void language plpgsql as $$
begin
    insert into deputize.tickets (tenant, id, kind, call_id, question, due_at)
        values (p_tenant, approval_id, 'approval', p_call_id, '{}', approval_expires_at);
    insert into deputize.approvals (tenant, id, call_id, binding, demands, presentation, preview_digest, previewed_at,
            fresh_seconds, chain, tool, group_key, levels, expires_at, next_at)
        values (p_tenant, approval_id, p_call_id, approval_binding, approval_demands, approval_presentation,
            approval_preview_digest, case when approval_preview_digest is not null then now() end,
            approval_fresh_seconds, approval_chain, approval_tool, approval_group_key, approval_levels,
            approval_expires_at, least(approval_expires_at, now() + make_interval(secs => approval_levels[1])));
    insert into deputize.approval_groups (tenant, grp, id) select p_tenant, g, approval_id from unnest(approval_groups) as g
        on conflict do nothing;
    insert into deputize.notices (tenant, ticket, grp, kind)
        select distinct p_tenant, approval_id, g, 'asked' from unnest(approval_groups) as g;
end $$;
comment on function deputize.open_approval is
    'Open an approval request with its ticket, its groups and their notices. Fails if the call has an open one.';

create function deputize.submit_for_approval(
    boot uuid,
    opening_tenant text, opening_call_id uuid, opening_tool text, opening_version text, opening_digest text,
    opening_mutation_class text, opening_user text, opening_agent text, opening_session text, opening_fingerprint bytea,
    opening_scope bytea, opening_key bytea, opening_seconds float8, opening_window_seconds integer, opening_trace text,
    opening_entry_id uuid, opening_entry bytea, opening_salt bytea,
    run_input bytea, run_caller bytea, run_not_after timestamptz, run_priority integer, run_release text,
    callback_request bytea,
    approval_id uuid, approval_binding bytea, approval_demands bytea, approval_presentation bytea,
    approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[], approval_tool text,
    approval_group_key text, approval_groups text[], approval_levels float8[], approval_expires_at timestamptz
) returns setof deputize.commit_result language plpgsql as $$
declare
    result deputize.commit_result;
    is_claimed boolean := false;
begin
    for result in select * from deputize.commit_calls(
        tenants => array[opening_tenant], boot => boot,
        openings_tenant => array[opening_tenant], openings_call_id => array[opening_call_id],
        openings_tool => array[opening_tool], openings_version => array[opening_version],
        openings_digest => array[opening_digest], openings_mutation_class => array[opening_mutation_class],
        openings_user => array[opening_user], openings_agent => array[opening_agent],
        openings_session => array[opening_session], openings_fingerprint => array[opening_fingerprint],
        openings_scope => array[opening_scope], openings_key => array[opening_key],
        openings_seconds => array[opening_seconds], openings_window_seconds => array[opening_window_seconds],
        openings_trace => array[opening_trace], openings_entry_id => array[opening_entry_id],
        openings_entry => array[opening_entry], openings_salt => array[opening_salt])
    loop
        is_claimed := is_claimed or result.kind = 'claimed';
        return next result;
    end loop;
    if is_claimed then
        return;
    end if;
    insert into deputize.runs (tenant, id, priority, caller, not_after, release)
        values (opening_tenant, opening_call_id, run_priority, run_caller, run_not_after, run_release);
    insert into deputize.sealed_payloads (tenant, id, kind, ciphertext)
        values (opening_tenant, opening_call_id, 'input', run_input);
    if callback_request is not null then
        insert into deputize.callbacks (tenant, id, request) values (opening_tenant, opening_call_id, callback_request);
    end if;
    update deputize.calls
        set state = 'awaiting_approval', owner_epoch = 0, needs_approval = true,
            has_callback = callback_request is not null
        where tenant = opening_tenant and id = opening_call_id;
    perform deputize.open_approval(
        p_tenant => opening_tenant, p_call_id => opening_call_id, approval_id => approval_id,
        approval_binding => approval_binding, approval_demands => approval_demands,
        approval_presentation => approval_presentation, approval_preview_digest => approval_preview_digest,
        approval_fresh_seconds => approval_fresh_seconds, approval_chain => approval_chain,
        approval_tool => approval_tool, approval_group_key => approval_group_key, approval_groups => approval_groups,
        approval_levels => approval_levels, approval_expires_at => approval_expires_at);
end $$;
comment on function deputize.submit_for_approval is
    'Commit the claim, the call, the run and the approval request of a call at once. The run is not given to the engine.';

create function deputize.request_approval_again(
    p_tenant text, p_call_id uuid, p_epoch integer,
    approval_id uuid, approval_binding bytea, approval_demands bytea, approval_presentation bytea,
    approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[], approval_tool text,
    approval_group_key text, approval_groups text[], approval_levels float8[], approval_expires_at timestamptz,
    p_entry_id uuid, p_entry bytea
) returns boolean language plpgsql as $$
begin
    perform deputize.acquire_barrier_shared(array[p_tenant]);
    update deputize.calls set state = 'awaiting_approval'
        where tenant = p_tenant and id = p_call_id and owner_epoch = p_epoch and state = 'queued' and needs_approval;
    if not found then
        return false;
    end if;
    update deputize.approvals set state = 'void', next_at = null, closed_at = now()
        where tenant = p_tenant and call_id = p_call_id and state in ('open', 'approved');
    perform deputize.open_approval(
        p_tenant => p_tenant, p_call_id => p_call_id, approval_id => approval_id,
        approval_binding => approval_binding, approval_demands => approval_demands,
        approval_presentation => approval_presentation, approval_preview_digest => approval_preview_digest,
        approval_fresh_seconds => approval_fresh_seconds, approval_chain => approval_chain,
        approval_tool => approval_tool, approval_group_key => approval_group_key, approval_groups => approval_groups,
        approval_levels => approval_levels, approval_expires_at => approval_expires_at);
    insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        values (p_tenant, p_entry_id, p_call_id, p_entry, null) on conflict do nothing;
    return true;
end $$;
comment on function deputize.request_approval_again is
    'Replace the approval of a call that would now do something else than what its approvers saw. Compare-and-set on the '
    'epoch.';
