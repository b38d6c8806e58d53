-- Users take turns in the queue of their tenant. A turn is a number: the engine takes the lowest first. A user's next call
-- gets the turn after their last one, or the turn that is served now, whichever is later; so calls of others go between
-- those of a user who queues many. Each priority of a user is a lane, behind their lanes of better priority; while
-- several are in use each gets fewer turns, so that a priority orders one's own calls and takes nothing from others.

create table deputize.queue_turns (
    tenant text not null,
    -- A user and a priority: not the name, which may have to be erased.
    lane bigint not null,
    turn bigint not null,
    used_at timestamptz not null default now(),
    primary key (tenant, lane)
);
create index queue_turns_last on deputize.queue_turns (tenant, turn);
create index queue_turns_by_time on deputize.queue_turns (used_at);
comment on table deputize.queue_turns is 'The last turn of each user and priority in the queue of a tenant.';
select deputize.secure_table('queue_turns', 'select, delete');

create or replace function deputize.enqueue_run(
    p_tenant text, p_call_id uuid, p_priority integer, p_delay_seconds double precision default 0,
    p_waited boolean default false
) returns void
    language plpgsql security definer
    set search_path to 'pg_catalog'
    as $$
declare
    before integer;
    served_turn bigint;
    next_turn bigint;
    whose text;
begin
    update deputize.runs set enqueue_count = enqueue_count + 1 where tenant = p_tenant and id = p_call_id
        returning enqueue_count - 1 into before;
    select (min(w.priority) - 1) / 2 into served_turn from dbos.workflow_status w
        where w.queue_name = 'runs' and w.status = 'ENQUEUED' and w.queue_partition_key = p_tenant;
    if served_turn is null then
        select coalesce(max(q.turn), 0) into served_turn from deputize.queue_turns q where q.tenant = p_tenant;
    end if;
    -- A run that has waited had its turn.
    next_turn := served_turn;
    if not p_waited and p_delay_seconds <= 0 then
        select k.caller_user into whose from deputize.calls k where k.tenant = p_tenant and k.id = p_call_id;
        select greatest(served_turn, max(q.turn) filter (where own.priority <= p_priority)
                   + 1 + count(*) filter (where own.priority <> p_priority and q.turn >= served_turn))
            into next_turn
            from generate_series(1, 10) as own(priority)
            join deputize.queue_turns q
                on q.tenant = p_tenant and q.lane = hashtextextended(whose, own.priority);
        insert into deputize.queue_turns as q (tenant, lane, turn)
            values (p_tenant, hashtextextended(coalesce(whose, ''), p_priority), next_turn)
            on conflict (tenant, lane) do update set turn = greatest(excluded.turn, q.turn + 1), used_at = now()
            returning q.turn into next_turn;
    end if;
    perform dbos.enqueue_workflow(
        workflow_name => 'carry', queue_name => 'runs',
        positional_args => array[to_json(p_tenant), to_json(p_call_id::text)],
        -- The engine forgets no id, so a run that is given to it again gets its id and a number.
        workflow_id => case when before = 0 then p_call_id::text else p_call_id::text || ':' || before end,
        -- A run that has waited goes before new ones of the same turn.
        priority => least(2 * next_turn + case when p_waited then 1 else 2 end, 2147483647)::integer,
        queue_partition_key => p_tenant,
        delay_until_epoch_ms =>
            case when p_delay_seconds > 0 then (1000 * (extract(epoch from now()) + p_delay_seconds))::bigint end);
end $$;

-- Commit a batch of new runs: their calls as commit_calls does, then the runs themselves, queued.
create or replace function deputize.queue_runs(
    tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[],
    openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[],
    openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[],
    openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[],
    openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], runs_input bytea[], runs_caller bytea[],
    runs_not_after timestamp with time zone[], runs_priority integer[], runs_release text[], callbacks_request bytea[],
    openings_undoes uuid[] DEFAULT '{}'::uuid[], openings_replaces uuid[] DEFAULT '{}'::uuid[]
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
    full_user text;
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
        openings_salt => openings_salt, openings_undoes => openings_undoes, openings_replaces => openings_replaces)
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
        if not found then
            -- Of one user, half as many. Only where the tenant has more than that are they counted.
            select u.tenant, u.caller_user into full_tenant, full_user
            from (select distinct o.tenant, o.caller_user
                  from unnest(openings_tenant, openings_call_id, openings_user) as o(tenant, id, caller_user)
                  where o.id = any(inserted)) as u
            where exists (select from deputize.calls k where k.tenant = u.tenant and k.state = 'queued'
                          offset greatest(max_queued / 2, 1) limit 1)
              and exists (select from deputize.calls k where k.tenant = u.tenant and k.state = 'queued'
                          and k.caller_user = u.caller_user offset greatest(max_queued / 2, 1) limit 1)
            limit 1;
        end if;
        if found then
            raise exception 'the queue is full'
                using errcode = 'DQ001', detail = full_tenant, hint = coalesce(full_user, '');
        end if;
    end if;
    -- In one order everywhere, so that two gateways that queue calls of the same users do not deadlock.
    perform deputize.enqueue_run(o.tenant, o.id, o.priority)
        from (select u.* from unnest(openings_tenant, openings_call_id, openings_user, runs_priority)
                  with ordinality as u(tenant, id, caller_user, priority, place)
              where u.id = any(inserted) order by u.tenant, u.caller_user, u.priority, u.place) as o;
end $$;
