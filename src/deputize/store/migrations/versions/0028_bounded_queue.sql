-- Commit a batch of new runs: their calls as commit_calls does, then the runs themselves, queued. A batch after which a
-- tenant would have more queued calls than deputize.max_queued is rejected as a whole, with the tenant as its detail.
create or replace function deputize.queue_runs(
    tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[],
    openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[],
    openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[],
    openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[],
    openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], runs_input bytea[], runs_caller bytea[],
    runs_not_after timestamp with time zone[], runs_priority integer[], runs_release text[], callbacks_request bytea[]
) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
declare
    result deputize.commit_result;
    claimed uuid[] := '{}';
    inserted uuid[];
    -- Set by gateways that know the bound; unset, there is none.
    max_queued integer := nullif(current_setting('deputize.max_queued', true), '')::integer;
    full_tenant text;
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
    if max_queued is not null then
        select t.tenant into full_tenant
        from (select distinct o.tenant from unnest(openings_tenant, openings_call_id) as o(tenant, id)
              where o.id = any(inserted)) as t
        where exists (select from deputize.calls k where k.tenant = t.tenant and k.state = 'queued'
                      offset max_queued limit 1)
        limit 1;
        if found then
            raise exception 'the queue of a tenant is full' using errcode = 'DQ001', detail = full_tenant;
        end if;
    end if;
    perform deputize.enqueue_run(o.tenant, o.id, o.priority)
        from unnest(openings_tenant, openings_call_id, runs_priority) as o(tenant, id, priority)
        where o.id = any(inserted);
end $$;
