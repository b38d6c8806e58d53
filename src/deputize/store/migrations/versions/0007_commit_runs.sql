-- Runs in batches: what `commit_calls` is to calls. One transaction and one round trip for all that one process queues,
-- begins and leaves at once; everything is idempotent by id, so a batch whose commit was not acknowledged is sent again.

create function deputize.queue_runs(
    tenants text[], boot uuid,
    o_tenant text[], o_id uuid[], o_tool text[], o_version text[], o_digest text[], o_class text[], o_user text[],
    o_agent text[], o_session text[], o_fingerprint bytea[], o_scope bytea[], o_key bytea[], o_seconds float8[],
    o_window integer[], o_trace text[], o_entry_id uuid[], o_entry bytea[], o_salt bytea[],
    r_input bytea[], r_caller bytea[], r_not_after timestamptz[], r_priority integer[], r_release text[], r_callback bytea[]
) returns setof deputize.commit_answer language plpgsql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
    none_t text[] := '{}'; none_u uuid[] := '{}'; none_b bytea[] := '{}';
    answer deputize.commit_answer;
    held uuid[] := '{}';
    made uuid[];
begin
    for answer in select * from deputize.commit_calls(
        tenants, boot, o_tenant, o_id, o_tool, o_version, o_digest, o_class, o_user, o_agent, o_session, o_fingerprint,
        o_scope, o_key, o_seconds, o_window, o_trace, o_entry_id, o_entry, o_salt, none_t, none_u, '{}'::integer[], none_t,
        none_t, '{}'::boolean[], none_b, none_u, none_b, none_b, none_t, none_u, none_u, none_b, none_b)
    loop
        if answer.what = 'held' then
            held := held || answer.id;
        end if;
        return next answer;
    end loop;
    return query select 'alone', null::text, null::uuid, null::uuid, null::bigint, null::bigint, null::bigint
        where not exists (select from deputize.workers w join deputize.leases l on l.boot = w.boot
                          where l.expires_at > now() - interval '5 seconds');
    with queued as (
        insert into deputize.runs (tenant, id, priority, caller, not_after, release)
        select o.tenant, o.id, o.priority, o.caller, o.not_after, o.release
        from unnest(o_tenant, o_id, r_priority, r_caller, r_not_after, r_release)
            as o(tenant, id, priority, caller, not_after, release)
        where o.id <> all(held)
        on conflict do nothing returning id
    )
    select coalesce(array_agg(id), '{}') into made from queued;
    -- Nobody's yet: the first worker to begin one holds epoch 1, like any first owner.
    update deputize.calls k set state = 'queued', owner_epoch = 0, callback = o.callback is not null
        from unnest(o_tenant, o_id, r_callback) as o(tenant, id, callback)
        where k.tenant = o.tenant and k.id = o.id and o.id = any(made);
    insert into deputize.sealed (tenant, id, kind, box)
        select o.tenant, o.id, 'input', o.input from unnest(o_tenant, o_id, r_input) as o(tenant, id, input)
        where o.id = any(made);
    insert into deputize.callbacks (tenant, id, asked)
        select o.tenant, o.id, o.callback from unnest(o_tenant, o_id, r_callback) as o(tenant, id, callback)
        where o.id = any(made) and o.callback is not null;
    perform deputize.enqueue_run(o.tenant, o.id, o.priority)
        from unnest(o_tenant, o_id, r_priority) as o(tenant, id, priority) where o.id = any(made);
end $$;

-- Puts a run in line for what it needs, which is as of now: settings may have changed since it began to wait. Whether it
-- has to wait there.
create function deputize.line_up(
    p_tenant text, p_id uuid, n_id uuid[], n_space text[], n_resource text[], n_scope text[], n_most integer[]
) returns boolean language plpgsql as $$
begin
    delete from deputize.places p where p.tenant = p_tenant and p.call_id = p_id and not exists (
        select from unnest(n_id, n_space, n_resource, n_scope) as n(id, space, resource, scope)
        where n.id = p_id and n.space = p.space and n.resource = p.resource and n.scope = p.scope);
    insert into deputize.places (tenant, call_id, space, resource, scope, most, priority)
        select p_tenant, p_id, n.space, n.resource, n.scope, n.most, r.priority
        from unnest(n_id, n_space, n_resource, n_scope, n_most) as n(id, space, resource, scope, most)
        join deputize.runs r on r.tenant = p_tenant and r.id = p_id
        where n.id = p_id
        on conflict (tenant, call_id, space, resource, scope) do update set most = excluded.most, left_at = null,
            since = case when places.left_at is null then places.since else now() end;
    update deputize.calls set ordered = true where tenant = p_tenant and id = p_id and not ordered;
    if deputize.must_wait(p_tenant, p_id) then
        update deputize.places set called_at = null where tenant = p_tenant and call_id = p_id and not held;
        return true;
    end if;
    update deputize.places set held = true where tenant = p_tenant and call_id = p_id and not held;
    return false;
end $$;

-- A worker takes a run: from the queue, or from one that is gone. Compare-and-set on the epoch it saw. Answers 'begun';
-- 'waits' for one that has to stand in line; 'busy' where somebody alive has it; 'lapsed' where the asking process
-- is not known to be alive itself; nothing where there is nothing to begin any more.
create function deputize.begin_run(
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
    elsif (seen.ordered or p_id = any(n_id))
        and deputize.line_up(p_tenant, p_id, n_id, n_space, n_resource, n_scope, n_most) then
        return 'waits';
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

create function deputize.begin_runs(
    tenants text[], boot uuid,
    b_tenant text[], b_id uuid[], b_epoch integer[], b_seconds float8[], b_margin float8[], b_entry_id uuid[],
    b_entry bytea[], b_salt bytea[],
    -- what they need a place for; and which others have just ended, and where they had theirs
    n_id uuid[], n_space text[], n_resource text[], n_scope text[], n_most integer[],
    l_id uuid[], l_space text[], l_resource text[]
) returns setof deputize.commit_answer language plpgsql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
    perform deputize.hold_barrier(tenants);
    perform deputize.hold_lines(n_space || l_space, n_resource || l_resource);
    return query
        select deputize.begin_run(boot, b.tenant, b.id, b.epoch, b.seconds, b.margin, b.entry_id, b.entry, b.salt,
                n_id, n_space, n_resource, n_scope, n_most),
            b.tenant, b.id, null::uuid, null::bigint, null::bigint, null::bigint
        from unnest(b_tenant, b_id, b_epoch, b_seconds, b_margin, b_entry_id, b_entry, b_salt)
            as b(tenant, id, epoch, seconds, margin, entry_id, entry, salt);
    perform deputize.call_those_behind(gone) from (select distinct gone from unnest(l_id) as gone) as ended;
    return query select * from deputize.epochs_of(tenants);
end $$;

-- Hands a run out again later: it cannot be carried here and now. Remembers since when that is because nobody is able to.
create function deputize.put_back(p_tenant text, p_id uuid, p_delay float8, p_unable boolean) returns boolean
    language plpgsql as $$
declare
    run_priority integer;
begin
    select r.priority into run_priority from deputize.runs r join deputize.calls k on k.tenant = r.tenant and k.id = r.id
    where r.tenant = p_tenant and r.id = p_id and k.state in ('queued', 'running', 'unknown');
    if not found then
        return false;
    end if;
    if p_unable then
        update deputize.runs set unable_since = coalesce(unable_since, now()) where tenant = p_tenant and id = p_id;
    end if;
    perform deputize.enqueue_run(p_tenant, p_id, run_priority, p_delay, true);
    return true;
end $$;

-- A run that was begun and did nothing goes back into the queue; of one that was taken over it is only known that it did
-- nothing under this owner.
create function deputize.undo_begin(p_tenant text, p_id uuid, p_epoch integer, p_clean boolean, p_delay float8)
    returns boolean language plpgsql as $$
begin
    update deputize.calls set state = case when p_clean then 'queued' else 'unknown' end
    where tenant = p_tenant and id = p_id and owner_epoch = p_epoch and state = 'running';
    if not found then
        return false;
    end if;
    update deputize.runs set untouched = case when p_clean then p_epoch else untouched end
    where tenant = p_tenant and id = p_id;
    return deputize.put_back(p_tenant, p_id, p_delay, false);
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
