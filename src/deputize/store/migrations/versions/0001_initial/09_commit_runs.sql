-- What commit_calls is to calls, for runs: one transaction and one round trip for all the runs that one process queues,
-- begins and leaves at once. Everything is idempotent by id: a batch whose commit was not acknowledged is sent again.

create function deputize.queue_runs(
    tenants text[], boot uuid,
    openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[],
    openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[],
    openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[],
    openings_seconds float8[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[],
    openings_entry bytea[], openings_salt bytea[],
    -- what a worker executes each of them with, and whom to call back
    runs_input bytea[], runs_caller bytea[], runs_not_after timestamptz[], runs_priority integer[], runs_release text[],
    callbacks_request bytea[]
) returns setof deputize.commit_result language plpgsql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
    result deputize.commit_result;
    claimed uuid[] := '{}';
    inserted uuid[];
begin
    for result in select * from deputize.commit_calls(
        tenants => tenants, boot => boot,
        openings_tenant => openings_tenant, openings_call_id => openings_call_id, openings_tool => openings_tool,
        openings_version => openings_version, openings_digest => openings_digest,
        openings_mutation_class => openings_mutation_class, openings_user => openings_user,
        openings_agent => openings_agent, openings_session => openings_session,
        openings_fingerprint => openings_fingerprint, openings_scope => openings_scope, openings_key => openings_key,
        openings_seconds => openings_seconds, openings_window_seconds => openings_window_seconds,
        openings_trace => openings_trace, openings_entry_id => openings_entry_id, openings_entry => openings_entry,
        openings_salt => openings_salt)
    loop
        if result.kind = 'claimed' then
            claimed := claimed || result.id;
        end if;
        return next result;
    end loop;
    return query select 'no_worker', null::text, null::uuid, null::uuid, null::bigint, null::bigint, null::bigint
        where not exists (select from deputize.workers w join deputize.leases l on l.boot = w.boot
                          where l.expires_at > now() - interval '5 seconds');
    with inserted_runs as (
        insert into deputize.runs (tenant, id, priority, caller, not_after, release)
        select o.tenant, o.id, o.priority, o.caller, o.not_after, o.release
        from unnest(openings_tenant, openings_call_id, runs_priority, runs_caller, runs_not_after, runs_release)
            as o(tenant, id, priority, caller, not_after, release)
        where o.id <> all(claimed)
        on conflict do nothing returning id
    )
    select coalesce(array_agg(id), '{}') into inserted from inserted_runs;
    -- Epoch 0 has no owner: the first worker to begin the run has epoch 1, like the first owner of any call.
    update deputize.calls k set state = 'queued', owner_epoch = 0, has_callback = o.callback is not null
        from unnest(openings_tenant, openings_call_id, callbacks_request) as o(tenant, id, callback)
        where k.tenant = o.tenant and k.id = o.id and o.id = any(inserted);
    insert into deputize.sealed_payloads (tenant, id, kind, ciphertext)
        select o.tenant, o.id, 'input', o.input
        from unnest(openings_tenant, openings_call_id, runs_input) as o(tenant, id, input)
        where o.id = any(inserted);
    insert into deputize.callbacks (tenant, id, request)
        select o.tenant, o.id, o.callback
        from unnest(openings_tenant, openings_call_id, callbacks_request) as o(tenant, id, callback)
        where o.id = any(inserted) and o.callback is not null;
    perform deputize.enqueue_run(o.tenant, o.id, o.priority)
        from unnest(openings_tenant, openings_call_id, runs_priority) as o(tenant, id, priority)
        where o.id = any(inserted);
end $$;
comment on function deputize.queue_runs is
    'Commit a batch of new runs: their calls as commit_calls does, then the runs themselves, queued.';

create function deputize.begin_run(
    p_boot uuid, p_tenant text, p_call_id uuid, p_epoch integer, p_seconds float8, p_margin_seconds float8,
    p_entry_id uuid, p_entry bytea, p_salt bytea,
    locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[]
) returns text language plpgsql as $$
declare
    call deputize.calls;
begin
    -- The call is locked before its resource locks are, in the order of everything that ends a call.
    select * into call from deputize.calls k where k.tenant = p_tenant and k.id = p_call_id for update;
    if call.state = 'running' and call.owner = p_boot and call.owner_epoch = p_epoch + 1 and exists (
        select from deputize.audit_entries a where a.tenant = p_tenant and a.id = p_entry_id) then
        return 'begun';
    elsif call.state is null or call.state not in ('queued', 'running', 'unknown') then
        return null;
    elsif call.owner_epoch <> p_epoch or call.state = 'running' and (call.owner = p_boot or exists (
        select from deputize.leases l where l.boot = call.owner
        and l.expires_at + make_interval(secs => p_margin_seconds) > now())) then
        return 'busy';
    elsif not exists (select from deputize.leases l where l.boot = p_boot and l.expires_at > now()) then
        return 'lapsed';
    elsif call.needs_approval and not deputize.is_approved(p_tenant, p_call_id, p_epoch) then
        return 'unapproved';
    elsif (call.uses_resource_locks or p_call_id = any(locks_call_id)) and deputize.request_locks(
        p_tenant, p_call_id, locks_call_id, locks_namespace, locks_resource, locks_scope, locks_capacity) then
        return 'waits';
    end if;
    if call.needs_approval then
        update deputize.approvals set state = 'used'
            where tenant = p_tenant and call_id = p_call_id and state = 'approved';
    end if;
    update deputize.calls
        set state = 'running', owner = p_boot, owner_epoch = p_epoch + 1, ended_at = null, error = null,
            deadline_at = now() + make_interval(secs => p_seconds)
        where tenant = p_tenant and id = p_call_id;
    update deputize.runs
        set started_at = coalesce(started_at, now()), unable_since = null,
            takeovers = takeovers + case when call.state = 'queued' then 0 else 1 end
        where tenant = p_tenant and id = p_call_id;
    insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        values (p_tenant, p_entry_id, p_call_id, p_entry, p_salt) on conflict do nothing;
    return 'begun';
end $$;
comment on function deputize.begin_run is
    'Begin a run from the queue, or take it over from a worker that is gone. Compare-and-set on the epoch. Returns begun; '
    'waits if it has to wait for locks; busy if a living worker executes it; lapsed if the lease of this worker is over; '
    'unapproved without an approval; null if there is nothing left to begin. The commit that begins it uses the approval up.';

create function deputize.begin_runs(
    tenants text[], boot uuid,
    beginnings_tenant text[], beginnings_call_id uuid[], beginnings_epoch integer[], beginnings_seconds float8[],
    beginnings_margin float8[], beginnings_entry_id uuid[], beginnings_entry bytea[], beginnings_salt bytea[],
    -- the locks they need; and which locks of other runs, which have just ended, were released
    locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[],
    releases_call_id uuid[], releases_namespace text[], releases_resource text[]
) returns setof deputize.commit_result language plpgsql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
    perform deputize.acquire_barrier_shared(tenants);
    perform deputize.acquire_lock_queues(locks_namespace || releases_namespace, locks_resource || releases_resource);
    return query
        select deputize.begin_run(
                p_boot => boot, p_tenant => b.tenant, p_call_id => b.id, p_epoch => b.epoch, p_seconds => b.seconds,
                p_margin_seconds => b.margin, p_entry_id => b.entry_id, p_entry => b.entry, p_salt => b.salt,
                locks_call_id => locks_call_id, locks_namespace => locks_namespace, locks_resource => locks_resource,
                locks_scope => locks_scope, locks_capacity => locks_capacity),
            b.tenant, b.id, null::uuid, null::bigint, null::bigint, null::bigint
        from unnest(beginnings_tenant, beginnings_call_id, beginnings_epoch, beginnings_seconds, beginnings_margin,
                beginnings_entry_id, beginnings_entry, beginnings_salt)
            as b(tenant, id, epoch, seconds, margin, entry_id, entry, salt);
    perform deputize.wake_runs_behind(ended.id)
        from (select distinct each.id from unnest(releases_call_id) as each(id)) as ended;
    return query select * from deputize.select_epochs(tenants);
end $$;
comment on function deputize.begin_runs is
    'Begin a batch of runs, and wake the runs behind those that have just ended.';
