-- The commit functions. A batch is one call of one of them, and so one transaction and one round trip.
--
-- The barrier: each takes its tenants' advisory locks SHARED first, and reads their epochs under them; whoever changes
-- authority takes the same lock EXCLUSIVE until its own commit is visible. By PostgreSQL's commit order, either a batch
-- came before a change, or it answers with the epoch that includes it. Nothing lies between.
--
-- Everything is idempotent by id: a batch whose commit was not acknowledged is simply sent again.

create function deputize.hold_barrier(tenants text[]) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(k)
    from (select distinct deputize.barrier_key(t) as k from unnest(tenants) as t order by 1) as keys;
end $$;

-- What one row of an answer means: 'epochs' (tenant, a, b, c), 'held' (id asked, id holding), 'closed' (id).
create type deputize.commit_answer as (
    what text, tenant text, id uuid, holder uuid, registry bigint, policy bigint, revocation bigint
);

-- The epochs a batch commits under. Checked once per batch instead of once per row: no row of a tenant nobody made.
create function deputize.epochs_of(tenants text[]) returns setof deputize.commit_answer language plpgsql as $$
declare
    found_rows bigint;
begin
    return query
        select 'epochs', e.tenant, null::uuid, null::uuid, e.registry, e.policy, e.revocation
        from deputize.epochs e where e.tenant = any(tenants);
    get diagnostics found_rows = row_count;
    if found_rows < cardinality(tenants) then
        raise foreign_key_violation using message = 'a row names a tenant that does not exist';
    end if;
end $$;

create function deputize.commit_entries(
    tenants text[], e_tenant text[], e_id uuid[], e_call uuid[], e_entry bytea[], e_salt bytea[]
) returns setof deputize.commit_answer language plpgsql as $$
begin
    perform deputize.hold_barrier(tenants);
    insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        select * from unnest(e_tenant, e_id, e_call, e_entry, e_salt)
        on conflict do nothing;
    return query select * from deputize.epochs_of(tenants);
end $$;

create function deputize.commit_calls(
    tenants text[], boot uuid,
    -- openings: a mutation's call row, its claim if it has a key, its intent
    o_tenant text[], o_id uuid[], o_tool text[], o_version text[], o_digest text[], o_class text[], o_user text[],
    o_agent text[], o_session text[], o_fingerprint bytea[], o_scope bytea[], o_key bytea[], o_seconds float8[],
    o_window integer[], o_trace text[], o_entry_id uuid[], o_entry bytea[], o_salt bytea[],
    -- closings: its outcome, compare-and-set on the owner's epoch
    c_tenant text[], c_id uuid[], c_epoch integer[], c_state text[], c_error text[],
    c_release boolean[], c_box bytea[], c_entry_id uuid[], c_entry bytea[], c_salt bytea[],
    -- entries that stand alone
    e_tenant text[], e_id uuid[], e_call uuid[], e_entry bytea[], e_salt bytea[]
) returns setof deputize.commit_answer language plpgsql
    -- The planner cannot know that batches are small: row by row through the primary keys is always right here.
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
    won uuid[];
    closed uuid[];
    made integer;
begin
    perform deputize.hold_barrier(tenants);

    if cardinality(o_id) > 0 then
        -- Sorted, so that two writers never lock the same keys in opposite order. One row per key within the batch:
        -- the winner is the row whose own id the claim holds, never whoever sees its key among the inserted.
        with taken as (
            insert into deputize.claims as held (tenant, scope, key, call_id)
            select distinct on (o.tenant, o.scope, o.key) o.tenant, o.scope, o.key, o.id
            from unnest(o_tenant, o_scope, o_key, o_id) as o(tenant, scope, key, id)
            where o.key is not null
            order by o.tenant, o.scope, o.key, o.id
            on conflict (tenant, scope, key) do update set call_id = excluded.call_id
            where exists (select from deputize.calls k where k.tenant = held.tenant and k.id = held.call_id
                          and k.window_ends <= now())
            returning held.call_id
        )
        select coalesce(array_agg(call_id), '{}') into won from taken;

        if cardinality(won) < cardinality(array_remove(o_key, null)) then
            -- Somebody else's, or ours since an earlier sending of this batch.
            return query
                select 'held', o.tenant, o.id, held.call_id, null::bigint, null::bigint, null::bigint
                from unnest(o_tenant, o_scope, o_key, o_id) as o(tenant, scope, key, id)
                join deputize.claims held on held.tenant = o.tenant and held.scope = o.scope and held.key = o.key
                where held.call_id <> o.id;
            won := won || array(
                select o.id from unnest(o_tenant, o_scope, o_key, o_id) as o(tenant, scope, key, id)
                join deputize.claims held on held.tenant = o.tenant and held.scope = o.scope and held.key = o.key
                where held.call_id = o.id and o.id <> all(won));
        end if;

        insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
            caller_agent, session, fingerprint, claim_scope, claim_key, owner, deadline_at, window_seconds, trace)
        select o.tenant, o.id, 'running', o.tool, o.version, o.digest, o.class, o.usr, o.agent, o.session,
            o.fingerprint, o.scope, o.key, boot, now() + make_interval(secs => o.seconds), o.window_seconds, o.trace
        from unnest(o_tenant, o_id, o_tool, o_version, o_digest, o_class, o_user, o_agent, o_session, o_fingerprint,
                o_scope, o_key, o_seconds, o_window, o_trace)
            as o(tenant, id, tool, version, digest, class, usr, agent, session, fingerprint, scope, key, seconds,
                 window_seconds, trace)
        where o.key is null or o.id = any(won)
        on conflict do nothing;
        get diagnostics made = row_count;
        if made < cardinality(won) + cardinality(o_key) - cardinality(array_remove(o_key, null)) then
            -- Sent before. Whoever was cut off so long that its call was taken over must not act on it any more.
            return query
                select 'held', o.tenant, o.id, k.id, null::bigint, null::bigint, null::bigint
                from unnest(o_tenant, o_id) as o(tenant, id)
                join deputize.calls k on k.tenant = o.tenant and k.id = o.id
                where k.owner <> boot or k.owner_epoch <> 1;
        end if;

        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        select o.tenant, o.entry_id, o.id, o.entry, o.salt
        from unnest(o_tenant, o_id, o_key, o_entry_id, o_entry, o_salt) as o(tenant, id, key, entry_id, entry, salt)
        where o.key is null or o.id = any(won)
        on conflict do nothing;
    end if;

    if cardinality(c_id) > 0 then
        with ended as (
            update deputize.calls k
            set state = c.state, error = c.error, nothing_happened = c.release, ended_at = now(),
                window_ends = case when c.state = 'unknown' then null
                                   else now() + make_interval(secs => k.window_seconds) end
            from unnest(c_tenant, c_id, c_epoch, c_state, c_error, c_release, c_box, c_entry_id, c_entry, c_salt)
                as c(tenant, id, epoch, state, error, release, box, entry_id, entry, salt)
            where k.tenant = c.tenant and k.id = c.id and k.owner_epoch = c.epoch and k.state in ('running', 'unknown')
            returning k.tenant, k.id, k.claim_scope, k.claim_key, c.release, c.box, c.entry_id, c.entry, c.salt
        ), released as (
            delete from deputize.claims held using ended
            where ended.release and held.tenant = ended.tenant and held.scope = ended.claim_scope
              and held.key = ended.claim_key and held.call_id = ended.id
        ), boxed as (
            insert into deputize.sealed (tenant, id, kind, box)
            select tenant, id, 'outcome', box from ended where box is not null
            on conflict (tenant, id, kind) do update set box = excluded.box
        ), proven as (
            insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select tenant, entry_id, id, entry, salt from ended
            on conflict do nothing
        )
        select coalesce(array_agg(id), '{}') into closed from ended;

        return query
            select 'closed', null::text, done, null::uuid, null::bigint, null::bigint, null::bigint
            from unnest(closed) as done;
        if cardinality(closed) < cardinality(c_id) then
            -- Not ours any more, or closed by an earlier sending of this batch: then our outcome entry stands.
            return query
                select 'closed', c.tenant, c.id, null::uuid, null::bigint, null::bigint, null::bigint
                from unnest(c_tenant, c_id, c_entry_id) as c(tenant, id, entry_id)
                join deputize.audit_entries a on a.tenant = c.tenant and a.id = c.entry_id
                where c.id <> all(closed);
        end if;
    end if;

    if cardinality(e_id) > 0 then
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(e_tenant, e_id, e_call, e_entry, e_salt)
            on conflict do nothing;
    end if;

    return query select * from deputize.epochs_of(tenants);
end $$;

-- A caller's retry takes over a call whose owner is gone or whose outcome is unknown: compare-and-set on the epoch
-- the caller saw, the claim stays with the same call, and the upstream gets the same key again.
create function deputize.retake_call(
    p_tenant text, p_id uuid, p_epoch integer, p_boot uuid, p_seconds float8, p_margin float8,
    p_entry_id uuid, p_entry bytea, p_salt bytea
) returns setof deputize.commit_answer language plpgsql as $$
begin
    perform deputize.hold_barrier(array[p_tenant]);
    update deputize.calls k
    set state = 'running', owner = p_boot, owner_epoch = k.owner_epoch + 1, ended_at = null, error = null,
        deadline_at = now() + make_interval(secs => p_seconds)
    where k.tenant = p_tenant and k.id = p_id and k.owner_epoch = p_epoch
      and (k.state = 'unknown'
           or k.state = 'running' and k.owner <> p_boot and not exists (
               select from deputize.leases l where l.boot = k.owner
               and l.expires_at + make_interval(secs => p_margin) > now()));
    if found then
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            values (p_tenant, p_entry_id, p_id, p_entry, p_salt) on conflict do nothing;
        return query select 'held', p_tenant, p_id, p_id, null::bigint, null::bigint, null::bigint;
    end if;
    return query select * from deputize.epochs_of(array[p_tenant]);
end $$;

-- Functions are everybody's unless somebody says otherwise.
revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
