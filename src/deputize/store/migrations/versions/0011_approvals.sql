-- Calls that wait for people. A ticket of kind 'approval' is bound to one exact call; the call is a row that waits and
-- nothing else: its run is handed to the engine by the very commit in which the last person that is needed says yes.

-- Somebody had to be asked before this call: it is begun only with a ticket that was approved, once.
alter table deputize.calls add column asked boolean not null default false;
-- Somebody decides about what they saw; what ends a ticket is more than that it was resolved.
create table deputize.approvals (
    tenant         text not null,
    -- That of the ticket.
    id             uuid not null,
    call_id        uuid not null,
    state          text not null default 'open'
        check (state in ('open', 'approved', 'used', 'denied', 'expired', 'void', 'canceled')),
    -- A keyed digest of exactly what was asked for: compared when somebody decides and when the call is begun.
    binding        bytea not null,
    -- What has to come together, as JSON: for each rule that asks its groups, how many people, and how they sign in.
    demands        bytea not null,
    -- What people are shown, sealed: redacted arguments, and what the call would change.
    shown          bytea not null,
    preview_digest bytea,
    previewed_at   timestamptz,
    fresh_seconds  integer,
    -- Everybody behind the call: none of them decides.
    chain          text[] not null,
    tool           text not null,
    -- The same for calls that are equal but for their arguments.
    group_key      text not null,
    -- How far it was escalated, and after how many seconds each further level is asked.
    level          integer not null default 0,
    levels         float8[] not null,
    reminded       integer not null default 0,
    opened_at      timestamptz not null default now(),
    expires_at     timestamptz not null,
    -- When something is due: the next level, a reminder, the end. Nothing once it is closed.
    next_at        timestamptz,
    closed_at      timestamptz,
    primary key (tenant, id)
);
create index approvals_of_call on deputize.approvals (tenant, call_id);
create index approvals_due on deputize.approvals (next_at) where next_at is not null;

-- Who may see and decide it now, while it is open: one step of this index finds what waits for a group.
create table deputize.approval_groups (
    tenant text not null,
    grp    text not null,
    id     uuid not null,
    primary key (tenant, grp, id)
);
create index approval_groups_of_ticket on deputize.approval_groups (tenant, id);

create table deputize.votes (
    tenant  text not null,
    id      uuid not null,
    voter   text not null,
    approve boolean not null,
    -- The demands this voice counts for, by their place, and how the person had signed in.
    counts  integer[] not null,
    methods text[] not null default '{}',
    reason  text not null default '',
    glass   boolean not null default false,
    at      timestamptz not null default now(),
    primary key (tenant, id, voter)
);

-- What somebody has to be told, written by the commit that makes it true; sent by whoever comes first, tried again.
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

do $$
declare name text;
begin
    foreach name in array array['approvals', 'approval_groups', 'votes', 'notices'] loop
        execute format('alter table deputize.%I enable row level security', name);
        execute format('alter table deputize.%I force row level security', name);
        execute format('create policy one_tenant on deputize.%I for select to deputize_reader
                        using (tenant = current_setting(''deputize.tenant'', true))', name);
        execute format('create policy every_tenant on deputize.%I to deputize_writer using (true) with check (true)', name);
        execute format('create policy owner_maintains on deputize.%I to deputize_owner using (true) with check (true)', name);
        execute format('grant select on deputize.%I to deputize_reader', name);
        execute format('grant select, insert on deputize.%I to deputize_writer', name);
    end loop;
end $$;
grant update on deputize.approvals, deputize.votes, deputize.notices to deputize_writer;
grant delete on deputize.approval_groups, deputize.notices to deputize_writer;

-- A ticket and everything that hangs on it. Nobody is asked about a call twice at once.
create function deputize.open_approval(
    p_tenant text, p_call uuid, p_id uuid, p_binding bytea, p_demands bytea, p_shown bytea, p_preview bytea,
    p_fresh integer, p_chain text[], p_tool text, p_group_key text, p_groups text[], p_levels float8[], p_expires timestamptz
) returns void language plpgsql as $$
begin
    insert into deputize.tickets (tenant, id, kind, call_id, question, due_at)
        values (p_tenant, p_id, 'approval', p_call, '{}', p_expires);
    insert into deputize.approvals (tenant, id, call_id, binding, demands, shown, preview_digest, previewed_at,
            fresh_seconds, chain, tool, group_key, levels, expires_at, next_at)
        values (p_tenant, p_id, p_call, p_binding, p_demands, p_shown, p_preview,
            case when p_preview is not null then now() end, p_fresh, p_chain, p_tool, p_group_key, p_levels,
            p_expires, least(p_expires, now() + make_interval(secs => p_levels[1])));
    insert into deputize.approval_groups (tenant, grp, id) select p_tenant, g, p_id from unnest(p_groups) as g
        on conflict do nothing;
    insert into deputize.notices (tenant, ticket, grp, kind) select distinct p_tenant, p_id, g, 'asked' from unnest(p_groups) as g;
end $$;

-- Claim, call row, run and ticket in one commit. The run is not handed out.
create function deputize.ask_run(
    boot uuid,
    o_tenant text, o_id uuid, o_tool text, o_version text, o_digest text, o_class text, o_user text, o_agent text,
    o_session text, o_fingerprint bytea, o_scope bytea, o_key bytea, o_seconds float8, o_window integer, o_trace text,
    o_entry_id uuid, o_entry bytea, o_salt bytea,
    r_input bytea, r_caller bytea, r_not_after timestamptz, r_priority integer, r_release text, r_callback bytea,
    a_id uuid, a_binding bytea, a_demands bytea, a_shown bytea, a_preview bytea, a_fresh integer, a_chain text[],
    a_group_key text, a_groups text[], a_levels float8[], a_expires timestamptz
) returns setof deputize.commit_answer language plpgsql as $$
declare
    none_t text[] := '{}'; none_u uuid[] := '{}'; none_b bytea[] := '{}';
    answer deputize.commit_answer;
    held boolean := false;
begin
    for answer in select * from deputize.commit_calls(
        array[o_tenant], boot, array[o_tenant], array[o_id], array[o_tool], array[o_version], array[o_digest], array[o_class],
        array[o_user], array[o_agent], array[o_session], array[o_fingerprint], array[o_scope], array[o_key],
        array[o_seconds], array[o_window], array[o_trace], array[o_entry_id], array[o_entry], array[o_salt],
        none_t, none_u, '{}'::integer[], none_t, none_t, '{}'::boolean[], none_b, none_u, none_b, none_b, none_t, none_u,
        none_u, none_b, none_b)
    loop
        held := held or answer.what = 'held';
        return next answer;
    end loop;
    if held then
        return;
    end if;
    insert into deputize.runs (tenant, id, priority, caller, not_after, release)
        values (o_tenant, o_id, r_priority, r_caller, r_not_after, r_release);
    insert into deputize.sealed (tenant, id, kind, box) values (o_tenant, o_id, 'input', r_input);
    if r_callback is not null then
        insert into deputize.callbacks (tenant, id, asked) values (o_tenant, o_id, r_callback);
    end if;
    update deputize.calls set state = 'awaiting_approval', owner_epoch = 0, asked = true, callback = r_callback is not null
        where tenant = o_tenant and id = o_id;
    perform deputize.open_approval(o_tenant, o_id, a_id, a_binding, a_demands, a_shown, a_preview, a_fresh, a_chain, o_tool,
        a_group_key, a_groups, a_levels, a_expires);
end $$;

-- An approved call that would do something else than what people saw: they are asked again. Compare-and-set.
create function deputize.ask_again(
    p_tenant text, p_call uuid, p_epoch integer, a_id uuid, a_binding bytea, a_demands bytea, a_shown bytea,
    a_preview bytea, a_fresh integer, a_chain text[], a_tool text, a_group_key text, a_groups text[], a_levels float8[],
    a_expires timestamptz, p_entry_id uuid, p_entry bytea
) returns boolean language plpgsql as $$
begin
    perform deputize.hold_barrier(array[p_tenant]);
    update deputize.calls set state = 'awaiting_approval'
        where tenant = p_tenant and id = p_call and owner_epoch = p_epoch and state = 'queued' and asked;
    if not found then
        return false;
    end if;
    update deputize.approvals set state = 'void', next_at = null, closed_at = now()
        where tenant = p_tenant and call_id = p_call and state in ('open', 'approved');
    perform deputize.open_approval(p_tenant, p_call, a_id, a_binding, a_demands, a_shown, a_preview, a_fresh, a_chain, a_tool,
        a_group_key, a_groups, a_levels, a_expires);
    insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        values (p_tenant, p_entry_id, p_call, p_entry, null) on conflict do nothing;
    return true;
end $$;

-- Everybody who is needed said yes: the call goes on. Not after its time, by the database's own clock as it is now: the
-- transaction may have begun long ago, and waited for the barrier since.
create function deputize.approve_asked(p_tenant text, p_id uuid, p_by text, p_reason text) returns boolean language plpgsql as $$
declare
    call uuid;
    run_priority integer;
begin
    update deputize.approvals set state = 'approved', next_at = null, closed_at = now()
        where tenant = p_tenant and id = p_id and state = 'open' and expires_at > clock_timestamp()
        returning call_id into call;
    if call is null then
        return false;
    end if;
    update deputize.calls set state = 'queued' where tenant = p_tenant and id = call and state = 'awaiting_approval';
    if not found then
        raise exception 'a ticket is open for a call that does not wait for it';
    end if;
    update deputize.tickets set state = 'resolved', resolved_at = now(), resolved_by = p_by, resolution = 'approved',
            reason = p_reason
        where tenant = p_tenant and id = p_id and state = 'open';
    delete from deputize.approval_groups where tenant = p_tenant and id = p_id;
    update deputize.runs set queued_at = now() where tenant = p_tenant and id = call returning priority into run_priority;
    perform deputize.enqueue_run(p_tenant, call, run_priority, 0, true);
    return true;
end $$;

-- The end of calls that wait for people, or were approved and not begun: denied, expired or void. Each with the epoch it was
-- seen at, its outcome and its entry; what is begun, ended or not yet due by the database's own clock is left alone.
create function deputize.end_asked(
    tenants text[], p_how text, p_by text, p_reason text,
    e_tenant text[], e_call uuid[], e_epoch integer[], e_state text[], e_error text[], e_box bytea[], e_entry_id uuid[],
    e_entry bytea[]
) returns setof uuid language plpgsql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
    perform deputize.hold_barrier(tenants);
    return query
    with seen as (
        select k.tenant, k.id, e.state, e.error, e.box, e.entry_id, e.entry
        from unnest(e_tenant, e_call, e_epoch, e_state, e_error, e_box, e_entry_id, e_entry)
            as e(tenant, call, epoch, state, error, box, entry_id, entry)
        join deputize.calls k on k.tenant = e.tenant and k.id = e.call
        where k.asked and k.owner_epoch = e.epoch and k.state in ('awaiting_approval', 'queued')
          and (p_how <> 'expired' or exists (
              select from deputize.approvals a where a.tenant = k.tenant and a.call_id = k.id
              and a.state in ('open', 'approved') and a.expires_at <= now()))
        order by k.tenant, k.id
        for update of k
    ), ended as (
        update deputize.calls k
        set state = seen.state, error = seen.error, nothing_happened = true, ended_at = now(),
            window_ends = now() + make_interval(secs => k.window_seconds)
        from seen where k.tenant = seen.tenant and k.id = seen.id
        returning k.tenant, k.id, seen.box, seen.entry_id, seen.entry
    ), closed as (
        update deputize.approvals a set state = p_how, next_at = null, closed_at = now()
        from ended where a.tenant = ended.tenant and a.call_id = ended.id and a.state in ('open', 'approved')
        returning a.tenant, a.id
    ), resolved as (
        update deputize.tickets t set state = case when p_how = 'expired' then 'expired' else 'resolved' end,
            resolved_at = now(), resolved_by = p_by, resolution = p_how, reason = p_reason
        from closed where t.tenant = closed.tenant and t.id = closed.id and t.state = 'open'
    ), unlisted as (
        delete from deputize.approval_groups g using closed where g.tenant = closed.tenant and g.id = closed.id
    ), boxed as (
        insert into deputize.sealed (tenant, id, kind, box) select tenant, id, 'outcome', box from ended where box is not null
        on conflict (tenant, id, kind) do update set box = excluded.box
    ), proven as (
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        select tenant, entry_id, id, entry, null from ended on conflict do nothing
    )
    select ended.id from ended;
end $$;

-- The end of a call that was approved and that nobody may begin any more, said by a worker that saw it approved then: not of
-- one that was put to people again since, nor of one they approved again.
create function deputize.end_unbegun(
    p_tenant text, p_call uuid, p_queued timestamptz, p_reason text, p_state text, p_error text, p_box bytea,
    p_entry_id uuid, p_entry bytea
) returns boolean language plpgsql as $$
begin
    perform deputize.hold_barrier(array[p_tenant]);
    perform from deputize.calls k where k.tenant = p_tenant and k.id = p_call for update;
    if not exists (select from deputize.calls k join deputize.runs r on r.tenant = k.tenant and r.id = k.id
        where k.tenant = p_tenant and k.id = p_call and k.state = 'queued' and r.queued_at = p_queued) then
        return false;
    end if;
    perform deputize.end_asked(array[p_tenant], 'void', '', p_reason, array[p_tenant], array[p_call], array[0],
        array[p_state], array[p_error], array[p_box], array[p_entry_id], array[p_entry]);
    return true;
end $$;

-- What the gateway could not find out is few, and is found among however many wait for a yes.
create index tickets_to_find_out on deputize.tickets (tenant, id) where kind = 'reconcile';

-- Whatever else ends such a call (its caller takes it back) ends its ticket too. Most calls end with a ticket that was
-- ended just before them, and one look is all they take here.
create function deputize.close_asked() returns trigger language plpgsql as $$
begin
    if not exists (select from deputize.approvals a
        where a.tenant = new.tenant and a.call_id = new.id and a.state in ('open', 'approved')) then
        return null;
    end if;
    with closed as (
        update deputize.approvals set state = 'canceled', next_at = null, closed_at = now()
        where tenant = new.tenant and call_id = new.id and state in ('open', 'approved') returning tenant, id
    ), resolved as (
        update deputize.tickets t set state = 'resolved', resolved_at = now(), resolved_by = '', resolution = 'canceled',
            reason = ''
        from closed where t.tenant = closed.tenant and t.id = closed.id and t.state = 'open'
    )
    delete from deputize.approval_groups g using closed where g.tenant = closed.tenant and g.id = closed.id;
    return null;
end $$;
create trigger calls_asked after update of state on deputize.calls for each row
    when (new.asked and old.state in ('awaiting_approval', 'queued') and new.ended_at is not null)
    execute function deputize.close_asked();

-- Whether a call that people were asked about may be begun: with a ticket that was approved and is not over, as of this
-- moment and not as of when the transaction began; or, taken over from somebody who had begun it, with the one that was
-- used for it.
create function deputize.is_approved(p_tenant text, p_call uuid, p_epoch integer) returns boolean language sql volatile as $$
    select exists (select from deputize.approvals a where a.tenant = p_tenant and a.call_id = p_call
        and (a.state = 'approved' and a.expires_at > clock_timestamp() or a.state = 'used' and p_epoch > 0))
$$;

-- As before, and: a call that people were asked about uses its ticket up in the commit that begins it; without one it is
-- 'unapproved'.
create or replace function deputize.begin_run(
    p_boot uuid, p_tenant text, p_id uuid, p_epoch integer, p_seconds float8, p_margin float8,
    p_entry_id uuid, p_entry bytea, p_salt bytea,
    n_id uuid[], n_space text[], n_resource text[], n_scope text[], n_most integer[]
) returns text language plpgsql as $$
declare
    seen deputize.calls;
begin
    -- The call is locked before its places are, as it is by whatever ends it.
    select * into seen from deputize.calls k where k.tenant = p_tenant and k.id = p_id for update;
    if seen.state = 'running' and seen.owner = p_boot and seen.owner_epoch = p_epoch + 1 and exists (
        select from deputize.audit_entries a where a.tenant = p_tenant and a.id = p_entry_id) then
        return 'begun';
    elsif seen.state is null or seen.state not in ('queued', 'running', 'unknown') then
        return null;
    elsif seen.owner_epoch <> p_epoch or seen.state = 'running' and (seen.owner = p_boot or exists (
        select from deputize.leases l where l.boot = seen.owner
        and l.expires_at + make_interval(secs => p_margin) > now())) then
        return 'busy';
    elsif not exists (select from deputize.leases l where l.boot = p_boot and l.expires_at > now()) then
        return 'lapsed';
    elsif seen.asked and not deputize.is_approved(p_tenant, p_id, p_epoch) then
        return 'unapproved';
    elsif (seen.ordered or p_id = any(n_id))
        and deputize.line_up(p_tenant, p_id, n_id, n_space, n_resource, n_scope, n_most) then
        return 'waits';
    end if;
    if seen.asked then
        update deputize.approvals set state = 'used' where tenant = p_tenant and call_id = p_id and state = 'approved';
    end if;
    update deputize.calls
        set state = 'running', owner = p_boot, owner_epoch = p_epoch + 1, ended_at = null, error = null,
            deadline_at = now() + make_interval(secs => p_seconds)
        where tenant = p_tenant and id = p_id;
    update deputize.runs
        set started_at = coalesce(started_at, now()), unable_since = null,
            takeovers = takeovers + case when seen.state = 'queued' then 0 else 1 end
        where tenant = p_tenant and id = p_id;
    insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        values (p_tenant, p_entry_id, p_id, p_entry, p_salt) on conflict do nothing;
    return 'begun';
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
