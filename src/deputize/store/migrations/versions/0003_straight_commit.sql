-- The straight way: nearly every batch carries new calls under free keys and outcomes of calls that are its own. It is
-- written with plain inserts, which cost about a quarter less than inserts that are ready for a conflict (those announce
-- each row under a lock and confirm it with a second WAL record). Whatever stands in the way (a key that is taken, a batch
-- sent again, a call that another process took over) undoes all of it and sends the batch the careful way, which is
-- the function of 0001_commit.sql as it was. Both take the same parameters and answer alike.

alter function deputize.commit_calls rename to commit_calls_carefully;
-- Left to itself PostgreSQL plans the closings of small batches anew each time, which takes longer than writing them.
alter function deputize.commit_calls_carefully set plan_cache_mode = force_generic_plan;

create function deputize.commit_calls(
    tenants text[], boot uuid,
    o_tenant text[], o_id uuid[], o_tool text[], o_version text[], o_digest text[], o_class text[], o_user text[],
    o_agent text[], o_session text[], o_fingerprint bytea[], o_scope bytea[], o_key bytea[], o_seconds float8[],
    o_window integer[], o_trace text[], o_entry_id uuid[], o_entry bytea[], o_salt bytea[],
    c_tenant text[], c_id uuid[], c_epoch integer[], c_state text[], c_error text[],
    c_release boolean[], c_box bytea[], c_entry_id uuid[], c_entry bytea[], c_salt bytea[],
    e_tenant text[], e_id uuid[], e_call uuid[], e_entry bytea[], e_salt bytea[]
) returns setof deputize.commit_answer language plpgsql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off
    set plan_cache_mode = force_generic_plan as $$
declare
    ended bigint;
    first_id uuid;
    last_id uuid;
begin
    perform deputize.hold_barrier(tenants);
    -- Nothing is answered from inside this block: what it wrote can be undone, what it answered could not.
    begin
        if cardinality(o_id) > 0 then
            -- Sorted, so that two writers never lock the same keys in opposite order.
            insert into deputize.claims (tenant, scope, key, call_id)
            select o.tenant, o.scope, o.key, o.id
            from unnest(o_tenant, o_scope, o_key, o_id) as o(tenant, scope, key, id)
            where o.key is not null
            order by o.tenant, o.scope, o.key;

            insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
                caller_agent, session, fingerprint, claim_scope, claim_key, owner, deadline_at, window_seconds, trace)
            select o.tenant, o.id, 'running', o.tool, o.version, o.digest, o.class, o.usr, o.agent, o.session,
                o.fingerprint, o.scope, o.key, boot, now() + make_interval(secs => o.seconds), o.window_seconds, o.trace
            from unnest(o_tenant, o_id, o_tool, o_version, o_digest, o_class, o_user, o_agent, o_session,
                    o_fingerprint, o_scope, o_key, o_seconds, o_window, o_trace)
                as o(tenant, id, tool, version, digest, class, usr, agent, session, fingerprint, scope, key, seconds,
                     window_seconds, trace);

            insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(o_tenant, o_entry_id, o_id, o_entry, o_salt);
        end if;

        if cardinality(c_id) > 0 then
            -- Between these two lie few days: the partitions of all others are not even looked at.
            select min_id.id, max_id.id into first_id, last_id
            from (select id from unnest(c_id) as id order by id limit 1) as min_id,
                 (select id from unnest(c_id) as id order by id desc limit 1) as max_id;

            update deputize.calls k
            set state = c.state, error = c.error, nothing_happened = c.release, ended_at = now(),
                window_ends = case when c.state = 'unknown' then null
                                   else now() + make_interval(secs => k.window_seconds) end
            from unnest(c_tenant, c_id, c_epoch, c_state, c_error, c_release)
                as c(tenant, id, epoch, state, error, release)
            where k.id between first_id and last_id and k.tenant = c.tenant and k.id = c.id
              and k.owner_epoch = c.epoch and k.state in ('running', 'unknown');
            get diagnostics ended = row_count;
            if ended < cardinality(c_id) then
                raise unique_violation using message = 'an outcome is not this owner''s to write';
            end if;

            if true = any(c_release) then
                delete from deputize.claims held
                using unnest(c_tenant, c_id, c_release) as c(tenant, id, release), deputize.calls k
                where c.release and k.tenant = c.tenant and k.id = c.id and held.tenant = c.tenant
                  and held.scope = k.claim_scope and held.key = k.claim_key and held.call_id = c.id;
            end if;

            insert into deputize.sealed (tenant, id, kind, box)
            select c.tenant, c.id, 'outcome', c.box from unnest(c_tenant, c_id, c_box) as c(tenant, id, box)
            where c.box is not null;

            insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(c_tenant, c_entry_id, c_id, c_entry, c_salt);
        end if;

        if cardinality(e_id) > 0 then
            insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(e_tenant, e_id, e_call, e_entry, e_salt);
        end if;
    exception when unique_violation then
        return query select * from deputize.commit_calls_carefully(tenants, boot,
            o_tenant, o_id, o_tool, o_version, o_digest, o_class, o_user, o_agent, o_session, o_fingerprint, o_scope,
            o_key, o_seconds, o_window, o_trace, o_entry_id, o_entry, o_salt,
            c_tenant, c_id, c_epoch, c_state, c_error, c_release, c_box, c_entry_id, c_entry, c_salt,
            e_tenant, e_id, e_call, e_entry, e_salt);
        return;
    end;

    return query
        select 'closed', null::text, done, null::uuid, null::bigint, null::bigint, null::bigint
        from unnest(c_id) as done;
    return query select * from deputize.epochs_of(tenants);
end $$;

create or replace function deputize.commit_entries(
    tenants text[], e_tenant text[], e_id uuid[], e_call uuid[], e_entry bytea[], e_salt bytea[]
) returns setof deputize.commit_answer language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    perform deputize.hold_barrier(tenants);
    begin
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(e_tenant, e_id, e_call, e_entry, e_salt);
    exception when unique_violation then
        -- Sent before.
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(e_tenant, e_id, e_call, e_entry, e_salt)
            on conflict do nothing;
    end;
    return query select * from deputize.epochs_of(tenants);
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on function deputize.commit_calls, deputize.commit_calls_carefully to deputize_writer;
