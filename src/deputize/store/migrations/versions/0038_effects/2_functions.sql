-- The same functions with what an opening takes back and which call it replaces; the release before leaves both out.
-- squawk-ignore ban-drop-function
drop function if exists deputize.queue_runs;
-- squawk-ignore ban-drop-function
drop function if exists deputize.submit_for_approval;
-- squawk-ignore ban-drop-function
drop function if exists deputize.settle_unknown_call;
-- squawk-ignore ban-drop-function
drop function if exists deputize.commit_calls;
-- squawk-ignore ban-drop-function
drop function if exists deputize.commit_calls_with_conflicts;

CREATE FUNCTION deputize.commit_calls(
    tenants text[], boot uuid, openings_tenant text[] DEFAULT '{}'::text[],
    openings_call_id uuid[] DEFAULT '{}'::uuid[], openings_tool text[] DEFAULT '{}'::text[],
    openings_version text[] DEFAULT '{}'::text[], openings_digest text[] DEFAULT '{}'::text[],
    openings_mutation_class text[] DEFAULT '{}'::text[], openings_user text[] DEFAULT '{}'::text[],
    openings_agent text[] DEFAULT '{}'::text[], openings_session text[] DEFAULT '{}'::text[],
    openings_fingerprint bytea[] DEFAULT '{}'::bytea[], openings_scope bytea[] DEFAULT '{}'::bytea[],
    openings_key bytea[] DEFAULT '{}'::bytea[], openings_seconds double precision[] DEFAULT '{}'::double precision[],
    openings_window_seconds integer[] DEFAULT '{}'::integer[], openings_trace text[] DEFAULT '{}'::text[],
    openings_entry_id uuid[] DEFAULT '{}'::uuid[], openings_entry bytea[] DEFAULT '{}'::bytea[],
    openings_salt bytea[] DEFAULT '{}'::bytea[], openings_undoes uuid[] DEFAULT '{}'::uuid[],
    openings_replaces uuid[] DEFAULT '{}'::uuid[], closings_tenant text[] DEFAULT '{}'::text[],
    closings_call_id uuid[] DEFAULT '{}'::uuid[], closings_epoch integer[] DEFAULT '{}'::integer[],
    closings_state text[] DEFAULT '{}'::text[], closings_error text[] DEFAULT '{}'::text[],
    closings_release boolean[] DEFAULT '{}'::boolean[], closings_ciphertext bytea[] DEFAULT '{}'::bytea[],
    closings_entry_id uuid[] DEFAULT '{}'::uuid[], closings_entry bytea[] DEFAULT '{}'::bytea[],
    closings_salt bytea[] DEFAULT '{}'::bytea[], entries_tenant text[] DEFAULT '{}'::text[],
    entries_id uuid[] DEFAULT '{}'::uuid[], entries_call_id uuid[] DEFAULT '{}'::uuid[],
    entries_entry bytea[] DEFAULT '{}'::bytea[], entries_salt bytea[] DEFAULT '{}'::bytea[],
    journal_tenant text[] DEFAULT '{}'::text[], journal_call_id uuid[] DEFAULT '{}'::uuid[],
    journal_id uuid[] DEFAULT '{}'::uuid[], journal_number smallint[] DEFAULT '{}'::smallint[],
    journal_flow_id text[] DEFAULT '{}'::text[], journal_step text[] DEFAULT '{}'::text[],
    journal_resource text[] DEFAULT '{}'::text[], journal_op text[] DEFAULT '{}'::text[],
    journal_scope text[] DEFAULT '{}'::text[], journal_before_digest text[] DEFAULT '{}'::text[],
    journal_after_digest text[] DEFAULT '{}'::text[], journal_certainty text[] DEFAULT '{}'::text[],
    journal_compensation_class text[] DEFAULT '{}'::text[], journal_undo_seconds integer[] DEFAULT '{}'::integer[],
    journal_sealed bytea[] DEFAULT '{}'::bytea[]
) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    updated bigint;
    first_id uuid;
    last_id uuid;
begin
    perform deputize.acquire_barrier_shared(tenants);
    -- No result is returned from inside this block: what it wrote can be undone, what it returned could not.
    begin
        if cardinality(openings_call_id) > 0 then
            -- Sorted, so that two writers never lock the same keys in opposite order.
            insert into deputize.claims (tenant, scope, key, call_id)
            select o.tenant, o.scope, o.key, o.id
            from unnest(openings_tenant, openings_scope, openings_key, openings_call_id) as o(tenant, scope, key, id)
            where o.key is not null
            order by o.tenant, o.scope, o.key;

            insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
                caller_agent, session, fingerprint, claim_scope, claim_key, owner, deadline_at, window_seconds, trace,
                undoes)
            select o.tenant, o.id, 'running', o.tool, o.version, o.digest, o.class, o.usr, o.agent, o.session,
                o.fingerprint, o.scope, o.key, boot, now() + make_interval(secs => o.seconds), o.window_seconds, o.trace,
                o.undoes
            from unnest(openings_tenant, openings_call_id, openings_tool, openings_version, openings_digest,
                    openings_mutation_class, openings_user, openings_agent, openings_session, openings_fingerprint,
                    openings_scope, openings_key, openings_seconds, openings_window_seconds, openings_trace, openings_undoes)
                as o(tenant, id, tool, version, digest, class, usr, agent, session, fingerprint, scope, key, seconds,
                     window_seconds, trace, undoes);

            insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(openings_tenant, openings_entry_id, openings_call_id, openings_entry, openings_salt);
        end if;

        if cardinality(closings_call_id) > 0 then
            -- Few days lie between these two: the partitions of all others are not even looked at.
            select min_id.id, max_id.id into first_id, last_id
            from (select id from unnest(closings_call_id) as id order by id limit 1) as min_id,
                 (select id from unnest(closings_call_id) as id order by id desc limit 1) as max_id;

            update deputize.calls k
            set state = c.state, error = c.error, nothing_happened = c.release, ended_at = now(),
                window_ends = case when c.release and k.undoes is not null then now()
                                   when c.state = 'unknown' or k.undoes is not null then null
                                   else now() + make_interval(secs => k.window_seconds) end
            from unnest(closings_tenant, closings_call_id, closings_epoch, closings_state, closings_error,
                    closings_release) as c(tenant, id, epoch, state, error, release)
            where k.id between first_id and last_id and k.tenant = c.tenant and k.id = c.id
              and k.owner_epoch = c.epoch and k.state in ('running', 'unknown');
            get diagnostics updated = row_count;
            if updated < cardinality(closings_call_id) then
                raise unique_violation using message = 'an outcome is not this owner''s to write';
            end if;

            if true = any(closings_release) then
                delete from deputize.claims claim
                using unnest(closings_tenant, closings_call_id, closings_release) as c(tenant, id, release),
                    deputize.calls k
                where c.release and k.tenant = c.tenant and k.id = c.id and claim.tenant = c.tenant
                  and claim.scope = k.claim_scope and claim.key = k.claim_key and claim.call_id = c.id;
            end if;

            insert into deputize.sealed_payloads (tenant, id, kind, ciphertext)
            select c.tenant, c.id, 'outcome', c.ciphertext
            from unnest(closings_tenant, closings_call_id, closings_ciphertext) as c(tenant, id, ciphertext)
            where c.ciphertext is not null;

            insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(closings_tenant, closings_entry_id, closings_call_id, closings_entry, closings_salt);

            if cardinality(journal_id) > 0 then
                with effects as materialized (
                    -- In the order of the batch: the effects of a call are beside each other, and have one ordinal.
                    select j.*, case when j.number = 0 then nextval('deputize.journal_ordinals')
                                     else currval('deputize.journal_ordinals') end as ordinal
                    from unnest(journal_tenant, journal_call_id, journal_id, journal_number, journal_flow_id, journal_step,
                        journal_resource, journal_op, journal_scope, journal_before_digest, journal_after_digest,
                        journal_certainty, journal_compensation_class, journal_undo_seconds, journal_sealed)
                        as j(tenant, call_id, id, number, flow_id, step, resource, op, scope, before_digest, after_digest,
                        certainty, compensation_class, undo_seconds, sealed)
                )
                insert into deputize.journal (tenant, id, number, call_id, caller_user, caller_agent, session, tool, version, flow_id,
                    step, resource, op, scope, before_digest, after_digest, certainty, compensation_class, undo_until, sealed,
                    undoes, ordinal, began_at)
                select j.tenant, j.id, j.number, j.call_id, k.caller_user, k.caller_agent, k.session, k.tool, k.version, j.flow_id,
                    j.step, j.resource, j.op, j.scope, j.before_digest, j.after_digest, j.certainty, j.compensation_class,
                    now() + make_interval(secs => j.undo_seconds), j.sealed, k.undoes, j.ordinal,
                    coalesce(r.started_at, k.created_at)
                from effects j
                join deputize.calls k on k.tenant = j.tenant and k.id = j.call_id and k.id between first_id and last_id
                left join deputize.runs r on r.tenant = j.tenant and r.id = j.call_id;
            end if;
        end if;

        if cardinality(entries_id) > 0 then
            insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(entries_tenant, entries_id, entries_call_id, entries_entry, entries_salt);
        end if;
    exception when unique_violation then
        return query select * from deputize.commit_calls_with_conflicts(
            tenants => tenants, boot => boot,
            openings_tenant => openings_tenant, openings_call_id => openings_call_id, openings_tool => openings_tool,
            openings_version => openings_version, openings_digest => openings_digest,
            openings_mutation_class => openings_mutation_class, openings_user => openings_user,
            openings_agent => openings_agent, openings_session => openings_session,
            openings_fingerprint => openings_fingerprint, openings_scope => openings_scope, openings_key => openings_key,
            openings_seconds => openings_seconds, openings_window_seconds => openings_window_seconds,
            openings_trace => openings_trace, openings_entry_id => openings_entry_id, openings_entry => openings_entry,
            openings_salt => openings_salt, openings_undoes => openings_undoes,
            openings_replaces => openings_replaces,
            closings_tenant => closings_tenant, closings_call_id => closings_call_id, closings_epoch => closings_epoch,
            closings_state => closings_state, closings_error => closings_error, closings_release => closings_release,
            closings_ciphertext => closings_ciphertext, closings_entry_id => closings_entry_id, closings_entry => closings_entry,
            closings_salt => closings_salt,
            entries_tenant => entries_tenant, entries_id => entries_id, entries_call_id => entries_call_id,
            entries_entry => entries_entry, entries_salt => entries_salt,
            journal_tenant => journal_tenant, journal_call_id => journal_call_id, journal_id => journal_id,
            journal_number => journal_number, journal_flow_id => journal_flow_id, journal_step => journal_step,
            journal_resource => journal_resource, journal_op => journal_op, journal_scope => journal_scope,
            journal_before_digest => journal_before_digest, journal_after_digest => journal_after_digest,
            journal_certainty => journal_certainty, journal_compensation_class => journal_compensation_class,
            journal_undo_seconds => journal_undo_seconds, journal_sealed => journal_sealed);
        return;
    end;

    return query
        select 'closed', null::text, c.id, null::uuid, null::bigint, null::bigint, null::bigint
        from unnest(closings_call_id) as c(id);
    return query select * from deputize.select_epochs(tenants);
end $$;

CREATE FUNCTION deputize.commit_calls_with_conflicts(
    tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[],
    openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[],
    openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[],
    openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[],
    openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], openings_undoes uuid[],
    openings_replaces uuid[], closings_tenant text[],
    closings_call_id uuid[], closings_epoch integer[], closings_state text[], closings_error text[],
    closings_release boolean[], closings_ciphertext bytea[], closings_entry_id uuid[], closings_entry bytea[],
    closings_salt bytea[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[],
    entries_salt bytea[], journal_tenant text[], journal_call_id uuid[], journal_id uuid[], journal_number smallint[],
    journal_flow_id text[], journal_step text[], journal_resource text[], journal_op text[], journal_scope text[],
    journal_before_digest text[], journal_after_digest text[], journal_certainty text[],
    journal_compensation_class text[], journal_undo_seconds integer[], journal_sealed bytea[]
) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    claimed uuid[];
    closed uuid[];
    inserted integer;
begin
    perform deputize.acquire_barrier_shared(tenants);

    if cardinality(openings_call_id) > 0 then
        -- Sorted, so that two writers never lock the same keys in opposite order. One row per key within the batch:
        -- the winner is the row whose own id the claim names, never any row that finds its key among the inserted.
        with inserted_claims as (
            insert into deputize.claims as claim (tenant, scope, key, call_id)
            select distinct on (o.tenant, o.scope, o.key) o.tenant, o.scope, o.key, o.id
            from unnest(openings_tenant, openings_scope, openings_key, openings_call_id) as o(tenant, scope, key, id)
            where o.key is not null
            order by o.tenant, o.scope, o.key, o.id
            on conflict (tenant, scope, key) do update set call_id = excluded.call_id
            -- A key is free once its window is over. A call that replaces an ended one takes the key over from that one
            -- alone, at any time: who had it in between may have acted. What takes an entry back keeps it until it is known
            -- to have done nothing.
            where exists (
                select from deputize.calls k
                join unnest(openings_call_id, openings_replaces) as o(id, replaced) on o.id = excluded.call_id
                where k.tenant = claim.tenant and k.id = claim.call_id
                  and case when o.replaced is null then k.window_ends <= now() else k.id = o.replaced and k.ended_at is not null end
                  and (k.undoes is null or k.nothing_happened))
            returning claim.call_id
        )
        select coalesce(array_agg(call_id), '{}') into claimed from inserted_claims;

        if cardinality(claimed) < cardinality(array_remove(openings_key, null)) then
            -- Claimed by another call, or by this one when the batch was sent before.
            return query
                select 'claimed', o.tenant, o.id, claim.call_id, null::bigint, null::bigint, null::bigint
                from unnest(openings_tenant, openings_scope, openings_key, openings_call_id) as o(tenant, scope, key, id)
                join deputize.claims claim on claim.tenant = o.tenant and claim.scope = o.scope and claim.key = o.key
                where claim.call_id <> o.id;
            claimed := claimed || array(
                select o.id
                from unnest(openings_tenant, openings_scope, openings_key, openings_call_id) as o(tenant, scope, key, id)
                join deputize.claims claim on claim.tenant = o.tenant and claim.scope = o.scope and claim.key = o.key
                where claim.call_id = o.id and o.id <> all(claimed));
        end if;

        insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
            caller_agent, session, fingerprint, claim_scope, claim_key, owner, deadline_at, window_seconds, trace,
            undoes)
        select o.tenant, o.id, 'running', o.tool, o.version, o.digest, o.class, o.usr, o.agent, o.session,
            o.fingerprint, o.scope, o.key, boot, now() + make_interval(secs => o.seconds), o.window_seconds, o.trace,
            o.undoes
        from unnest(openings_tenant, openings_call_id, openings_tool, openings_version, openings_digest,
                openings_mutation_class, openings_user, openings_agent, openings_session, openings_fingerprint,
                openings_scope, openings_key, openings_seconds, openings_window_seconds, openings_trace, openings_undoes)
            as o(tenant, id, tool, version, digest, class, usr, agent, session, fingerprint, scope, key, seconds,
                 window_seconds, trace, undoes)
        where o.key is null or o.id = any(claimed)
        on conflict do nothing;
        get diagnostics inserted = row_count;
        if inserted < cardinality(claimed) + cardinality(openings_key) - cardinality(array_remove(openings_key, null)) then
            -- This batch was sent before. A process cut off so long that its call was taken over must not act on it.
            return query
                select 'claimed', o.tenant, o.id, k.id, null::bigint, null::bigint, null::bigint
                from unnest(openings_tenant, openings_call_id) as o(tenant, id)
                join deputize.calls k on k.tenant = o.tenant and k.id = o.id
                where k.owner <> boot or k.owner_epoch <> 1;
        end if;

        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        select o.tenant, o.entry_id, o.id, o.entry, o.salt
        from unnest(openings_tenant, openings_call_id, openings_key, openings_entry_id, openings_entry, openings_salt)
            as o(tenant, id, key, entry_id, entry, salt)
        where o.key is null or o.id = any(claimed)
        on conflict do nothing;
    end if;

    if cardinality(closings_call_id) > 0 then
        with ended as (
            update deputize.calls k
            set state = c.state, error = c.error, nothing_happened = c.release, ended_at = now(),
                window_ends = case when c.release and k.undoes is not null then now()
                                   when c.state = 'unknown' or k.undoes is not null then null
                                   else now() + make_interval(secs => k.window_seconds) end
            from unnest(closings_tenant, closings_call_id, closings_epoch, closings_state, closings_error,
                    closings_release, closings_ciphertext, closings_entry_id, closings_entry, closings_salt)
                as c(tenant, id, epoch, state, error, release, ciphertext, entry_id, entry, salt)
            where k.tenant = c.tenant and k.id = c.id and k.owner_epoch = c.epoch and k.state in ('running', 'unknown')
            returning k.tenant, k.id, k.claim_scope, k.claim_key, c.release, c.ciphertext, c.entry_id, c.entry, c.salt
        ), deleted_claims as (
            delete from deputize.claims claim using ended
            where ended.release and claim.tenant = ended.tenant and claim.scope = ended.claim_scope
              and claim.key = ended.claim_key and claim.call_id = ended.id
        ), inserted_payloads as (
            insert into deputize.sealed_payloads (tenant, id, kind, ciphertext)
            select tenant, id, 'outcome', ciphertext from ended where ciphertext is not null
            on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext
        ), inserted_entries as (
            insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select tenant, entry_id, id, entry, salt from ended
            on conflict do nothing
        )
        select coalesce(array_agg(id), '{}') into closed from ended;

        if cardinality(journal_id) > 0 then
            with effects as materialized (
                -- In the order of the batch: the effects of a call are beside each other, and have one ordinal.
                select j.*, case when j.number = 0 then nextval('deputize.journal_ordinals')
                                 else currval('deputize.journal_ordinals') end as ordinal
                from unnest(journal_tenant, journal_call_id, journal_id, journal_number, journal_flow_id, journal_step,
                    journal_resource, journal_op, journal_scope, journal_before_digest, journal_after_digest,
                    journal_certainty, journal_compensation_class, journal_undo_seconds, journal_sealed)
                    as j(tenant, call_id, id, number, flow_id, step, resource, op, scope, before_digest, after_digest,
                    certainty, compensation_class, undo_seconds, sealed)
            )
            insert into deputize.journal (tenant, id, number, call_id, caller_user, caller_agent, session, tool, version, flow_id,
                step, resource, op, scope, before_digest, after_digest, certainty, compensation_class, undo_until, sealed,
                undoes, ordinal, began_at)
            select j.tenant, j.id, j.number, j.call_id, k.caller_user, k.caller_agent, k.session, k.tool, k.version, j.flow_id,
                j.step, j.resource, j.op, j.scope, j.before_digest, j.after_digest, j.certainty, j.compensation_class,
                now() + make_interval(secs => j.undo_seconds), j.sealed, k.undoes, j.ordinal,
                coalesce(r.started_at, k.created_at)
            from effects j
            join deputize.calls k on k.tenant = j.tenant and k.id = j.call_id
            left join deputize.runs r on r.tenant = j.tenant and r.id = j.call_id
            where j.call_id = any(closed)
            on conflict do nothing;
        end if;

        return query
            select 'closed', null::text, c.id, null::uuid, null::bigint, null::bigint, null::bigint
            from unnest(closed) as c(id);
        if cardinality(closed) < cardinality(closings_call_id) then
            -- Owned by another process now, or closed when the batch was sent before: then our outcome entry is there.
            return query
                select 'closed', c.tenant, c.id, null::uuid, null::bigint, null::bigint, null::bigint
                from unnest(closings_tenant, closings_call_id, closings_entry_id) as c(tenant, id, entry_id)
                join deputize.audit_entries a on a.tenant = c.tenant and a.id = c.entry_id
                where c.id <> all(closed);
        end if;
    end if;

    if cardinality(entries_id) > 0 then
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(entries_tenant, entries_id, entries_call_id, entries_entry, entries_salt)
            on conflict do nothing;
    end if;

    return query select * from deputize.select_epochs(tenants);
end $$;

CREATE FUNCTION deputize.queue_runs(
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
        if found then
            raise exception 'the queue of a tenant is full' using errcode = 'DQ001', detail = full_tenant;
        end if;
    end if;
    perform deputize.enqueue_run(o.tenant, o.id, o.priority)
        from unnest(openings_tenant, openings_call_id, runs_priority) as o(tenant, id, priority)
        where o.id = any(inserted);
end $$;

CREATE FUNCTION deputize.submit_for_approval(
    boot uuid, opening_tenant text, opening_call_id uuid, opening_tool text, opening_version text, opening_digest text,
    opening_mutation_class text, opening_user text, opening_agent text, opening_session text, opening_fingerprint bytea,
    opening_scope bytea, opening_key bytea, opening_seconds double precision, opening_window_seconds integer,
    opening_trace text, opening_entry_id uuid, opening_entry bytea, opening_salt bytea, run_input bytea,
    run_caller bytea, run_not_after timestamp with time zone, run_priority integer, run_release text,
    callback_request bytea, approval_id uuid, approval_binding bytea, approval_demands bytea,
    approval_presentation bytea, approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[],
    approval_tool text, approval_group_key text, approval_groups text[], approval_levels double precision[],
    approval_expires_at timestamp with time zone, opening_undoes uuid DEFAULT NULL::uuid,
    opening_replaces uuid DEFAULT NULL::uuid
) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    AS $$
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
        openings_entry => array[opening_entry], openings_salt => array[opening_salt],
        openings_undoes => array[opening_undoes], openings_replaces => array[opening_replaces])
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

CREATE FUNCTION deputize.settle_unknown_call(
    closing_tenant text, closing_call_id uuid, closing_epoch integer, closing_state text, closing_error text,
    closing_release boolean, closing_ciphertext bytea, closing_entry_id uuid, closing_entry bytea, closing_salt bytea,
    journal_tenant text[] DEFAULT '{}'::text[], journal_call_id uuid[] DEFAULT '{}'::uuid[],
    journal_id uuid[] DEFAULT '{}'::uuid[], journal_number smallint[] DEFAULT '{}'::smallint[],
    journal_flow_id text[] DEFAULT '{}'::text[], journal_step text[] DEFAULT '{}'::text[],
    journal_resource text[] DEFAULT '{}'::text[], journal_op text[] DEFAULT '{}'::text[],
    journal_scope text[] DEFAULT '{}'::text[], journal_before_digest text[] DEFAULT '{}'::text[],
    journal_after_digest text[] DEFAULT '{}'::text[], journal_certainty text[] DEFAULT '{}'::text[],
    journal_compensation_class text[] DEFAULT '{}'::text[], journal_undo_seconds integer[] DEFAULT '{}'::integer[],
    journal_sealed bytea[] DEFAULT '{}'::bytea[]
) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
    place bigint;
    first_began_at timestamptz;
    last_ended_at timestamptz;
begin
    -- In the order of every commit: the barrier first, then the row.
    perform deputize.acquire_barrier_shared(array[closing_tenant]);
    perform from deputize.calls k
        where k.tenant = closing_tenant and k.id = closing_call_id and k.owner_epoch = closing_epoch
          and k.state = 'unknown' for update;
    if not found then
        return false;
    end if;
    perform deputize.commit_calls(
        tenants => array[closing_tenant], boot => closing_entry_id,
        closings_tenant => array[closing_tenant], closings_call_id => array[closing_call_id],
        closings_epoch => array[closing_epoch], closings_state => array[closing_state],
        closings_error => array[closing_error], closings_release => array[closing_release],
        closings_ciphertext => array[closing_ciphertext], closings_entry_id => array[closing_entry_id],
        closings_entry => array[closing_entry], closings_salt => array[closing_salt]);
    if cardinality(journal_id) > 0 then
        -- What it did has its place in the journal since the call ended, not since it is known.
        select max(u.ordinal), min(u.began_at), max(u.ended_at) into place, first_began_at, last_ended_at
        from deputize.journal u
        where u.tenant = closing_tenant and u.call_id = closing_call_id and u.certainty = 'uncertain'
          and u.id >= deputize.first_uuid_of_eve(closing_call_id);
        place := coalesce(place, nextval('deputize.journal_ordinals'));
        insert into deputize.journal (tenant, id, number, call_id, caller_user, caller_agent, session, tool, version, flow_id,
            step, resource, op, scope, before_digest, after_digest, certainty, compensation_class, undo_until, sealed,
            undoes, ordinal, began_at, ended_at)
        select j.tenant, j.id, j.number, j.call_id, k.caller_user, k.caller_agent, k.session, k.tool, k.version, j.flow_id,
            j.step, j.resource, j.op, j.scope, j.before_digest, j.after_digest, j.certainty, j.compensation_class,
            now() + make_interval(secs => j.undo_seconds), j.sealed, k.undoes, place,
            coalesce(first_began_at, k.created_at), coalesce(last_ended_at, now())
        from unnest(journal_tenant, journal_call_id, journal_id, journal_number, journal_flow_id, journal_step,
            journal_resource, journal_op, journal_scope, journal_before_digest, journal_after_digest,
            journal_certainty, journal_compensation_class, journal_undo_seconds, journal_sealed)
            as j(tenant, call_id, id, number, flow_id, step, resource, op, scope, before_digest, after_digest,
            certainty, compensation_class, undo_seconds, sealed)
        join deputize.calls k on k.tenant = j.tenant and k.id = j.call_id;
    end if;
    delete from deputize.reconciliations where tenant = closing_tenant and id = closing_call_id;
    return true;
end $$;

comment on function deputize.queue_runs is
    'Commit a batch of new runs: their calls as commit_calls does, then the runs themselves, queued.';
comment on function deputize.submit_for_approval is
    'Commit the claim, the call, the run and the approval request of a call at once. The run is not given to the engine.';
comment on function deputize.settle_unknown_call is
    'Store the established outcome of a call recorded as unknown. Compare-and-set on the epoch: a call that was taken over or settled meanwhile is left alone, and false is returned.';
comment on function deputize.commit_calls is
    'Commit a batch of openings, closings with their journal, and audit entries, all or nothing. Each group is an array per column, all of one length; a group that is left out is empty.';
comment on function deputize.commit_calls_with_conflicts is
    'Commit a batch that conflicts with what is stored: a claimed key, a batch sent before, a call that was taken over. Called by commit_calls, with the same parameters and results.';

CREATE OR REPLACE FUNCTION deputize.end_unstarted_calls(
    tenants text[], p_approval_state text, p_resolved_by text, p_reason text, ends_tenant text[], ends_call_id uuid[],
    ends_epoch integer[], ends_state text[], ends_error text[], ends_ciphertext bytea[], ends_entry_id uuid[],
    ends_entry bytea[]
) RETURNS SETOF uuid
    LANGUAGE plpgsql
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
begin
    perform deputize.acquire_barrier_shared(tenants);
    return query
    with found_calls as (
        select k.tenant, k.id, e.state, e.error, e.ciphertext, e.entry_id, e.entry
        from unnest(ends_tenant, ends_call_id, ends_epoch, ends_state, ends_error, ends_ciphertext, ends_entry_id, ends_entry)
            as e(tenant, call_id, epoch, state, error, ciphertext, entry_id, entry)
        join deputize.calls k on k.tenant = e.tenant and k.id = e.call_id
        where k.needs_approval and k.owner_epoch = e.epoch and k.state in ('awaiting_approval', 'queued')
          and (p_approval_state <> 'expired' or exists (
              select from deputize.approvals a where a.tenant = k.tenant and a.call_id = k.id
              and a.state in ('open', 'approved') and a.expires_at <= now()))
        order by k.tenant, k.id
        for update of k
    ), ended as (
        update deputize.calls k
        set state = found_calls.state, error = found_calls.error, nothing_happened = true, ended_at = now(),
            window_ends = now() + make_interval(secs => case when k.undoes is null then k.window_seconds else 0 end)
        from found_calls where k.tenant = found_calls.tenant and k.id = found_calls.id
        returning k.tenant, k.id, found_calls.ciphertext, found_calls.entry_id, found_calls.entry
    ), closed as (
        update deputize.approvals a set state = p_approval_state, next_at = null, closed_at = now()
        from ended where a.tenant = ended.tenant and a.call_id = ended.id and a.state in ('open', 'approved')
        returning a.tenant, a.id
    ), resolved_tasks as (
        update deputize.human_tasks t set state = case when p_approval_state = 'expired' then 'expired' else 'resolved' end,
            resolved_at = now(), resolved_by = p_resolved_by, resolution = p_approval_state, reason = p_reason
        from closed where t.tenant = closed.tenant and t.id = closed.id and t.state = 'open'
    ), deleted_groups as (
        delete from deputize.approval_groups g using closed where g.tenant = closed.tenant and g.id = closed.id
    ), inserted_payloads as (
        insert into deputize.sealed_payloads (tenant, id, kind, ciphertext)
        select tenant, id, 'outcome', ciphertext from ended where ciphertext is not null
        on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext
    ), inserted_entries as (
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        select tenant, entry_id, id, entry, null from ended on conflict do nothing
    )
    select ended.id from ended;
end $$;

CREATE OR REPLACE FUNCTION deputize.delete_old_payloads(p_days integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $_$
declare
    part text;
    day date;
    first_id uuid;
    next_id uuid;
    truncated integer := 0;
    rows_left integer;
begin
    p_days := greatest(p_days, 1);
    perform deputize.lock_legal_holds(false);
    for part, day in
        select c.relname, to_date(right(c.relname, 8), 'YYYYMMDD')
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'deputize.sealed_payloads'::regclass
          and case when c.relname ~ '_[0-9]{8}$' then to_date(right(c.relname, 8), 'YYYYMMDD') end < (now() at time zone 'utc')::date - p_days
        order by 1
    loop
        execute format('select count(*) from (select from deputize.%I limit 1) as any_left', part) into rows_left;
        continue when rows_left = 0;
        first_id := deputize.first_uuid_of_day(day);
        next_id := deputize.first_uuid_of_day(day + 1);
        -- A day of which no call is open, lately ended or held is truncated; any other loses its rows one by one.
        if not exists (select from deputize.legal_holds)
            and not exists (select from deputize.calls k where k.id >= first_id and k.id < next_id
                            and (k.ended_at is null or k.ended_at > now() - make_interval(days => p_days))) then
            execute format('truncate deputize.%I', part);
            truncated := truncated + 1;
        else
            execute format('delete from deputize.%I s where not exists (
                select from deputize.calls k where k.tenant = s.tenant and k.id = s.id
                and (k.ended_at is null or k.ended_at > now() - make_interval(days => $1)
                     or deputize.is_call_held(k.tenant, k.id, k.caller_user)))', part) using p_days;
        end if;
    end loop;
    delete from deputize.runs r using (
        select o.tenant, o.id from deputize.runs o
        where o.id < deputize.first_uuid_of_day((now() at time zone 'utc')::date - p_days)
          and exists (select from deputize.calls k where k.tenant = o.tenant and k.id = o.id
                      and k.ended_at < now() - make_interval(days => p_days) and k.state <> 'unknown'
                      and not deputize.is_call_held(k.tenant, k.id, k.caller_user))
        order by o.id limit 100000) as old
    where r.tenant = old.tenant and r.id = old.id;
    -- A claim whose window is over says who had the key last, to a retry of a call before it: as long as there may be one
    -- with its input. That of an undo holds as long as there is what it took back.
    delete from deputize.claims c using deputize.calls k
    where k.tenant = c.tenant and k.id = c.call_id
      and c.call_id < deputize.first_uuid_of_day((now() at time zone 'utc')::date - p_days)
      and (k.window_ends < now() - interval '1 day'
           or k.undoes is not null and k.ended_at < now() - interval '1 day' and k.state <> 'unknown'
              and not exists (select from deputize.journal j where j.tenant = k.tenant and j.id = k.undoes))
      and not exists (select from deputize.legal_holds);
    return truncated;
end $_$;
