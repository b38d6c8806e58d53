-- The functions a group commit calls. A batch is one call of one of them: one transaction and one round trip.
--
-- The barrier: each takes the advisory locks of its tenants SHARED first and reads their epochs under them; anyone who changes
-- authority takes the same lock EXCLUSIVE until its own commit is visible. By PostgreSQL's commit order, a batch either
-- came before a change or answers with the epoch that includes it.
--
-- Everything is idempotent by id: a batch whose commit was not acknowledged is sent again.

create function deputize.barrier_key(tenant text) returns bigint language sql immutable parallel safe
    as $$ select hashtextextended('deputize.barrier.' || tenant, 0) $$;
comment on function deputize.barrier_key is 'Return the key of a tenant''s barrier, an advisory lock.';

create function deputize.acquire_barrier_shared(tenants text[]) returns void language plpgsql as $$
begin
    -- Sorted, so that two batches never wait for each other in a circle.
    perform pg_advisory_xact_lock_shared(k)
    from (select distinct deputize.barrier_key(t) as k from unnest(tenants) as t order by 1) as keys;
end $$;
comment on function deputize.acquire_barrier_shared is 'Acquire the barriers of these tenants, shared, until the commit.';

create type deputize.commit_result as (
    kind text, tenant text, id uuid, holder uuid, registry bigint, policy bigint, revocation bigint
);
comment on type deputize.commit_result is
    'One fact about a batch. epochs: a tenant''s epochs as of this commit. claimed: the key of call id belongs to call '
    'holder. closed: the outcome of call id is stored. taken_over, continued: call id is the caller''s now. no_worker: no worker '
    'is alive. begun, waits, busy, lapsed, unapproved: what came of beginning run id.';

create function deputize.select_epochs(tenants text[]) returns setof deputize.commit_result language plpgsql as $$
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
comment on function deputize.select_epochs is
    'Return the epochs a batch commits under. Fails where a tenant does not exist: checked once per batch, not once per row.';

create function deputize.commit_entries(
    tenants text[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[],
    entries_salt bytea[]
) returns setof deputize.commit_result language plpgsql set plan_cache_mode = force_generic_plan as $$
begin
    perform deputize.acquire_barrier_shared(tenants);
    begin
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(entries_tenant, entries_id, entries_call_id, entries_entry, entries_salt);
    exception when unique_violation then
        -- This batch was sent before.
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            select * from unnest(entries_tenant, entries_id, entries_call_id, entries_entry, entries_salt)
            on conflict do nothing;
    end;
    return query select * from deputize.select_epochs(tenants);
end $$;
comment on function deputize.commit_entries is 'Commit audit entries that stand alone, such as those of reads and refusals.';

create function deputize.commit_calls_with_conflicts(
    tenants text[], boot uuid,
    openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[],
    openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[],
    openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[],
    openings_seconds float8[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[],
    openings_entry bytea[], openings_salt bytea[],
    closings_tenant text[], closings_call_id uuid[], closings_epoch integer[], closings_state text[],
    closings_error text[], closings_release boolean[], closings_ciphertext bytea[], closings_entry_id uuid[],
    closings_entry bytea[], closings_salt bytea[],
    entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[]
) returns setof deputize.commit_result language plpgsql
    -- The planner cannot know that batches are small: row by row through the primary keys is always right here. Left to
    -- itself it also plans the closings of small batches anew each time, which takes longer than writing them.
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off
    set plan_cache_mode = force_generic_plan as $$
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
            where exists (select from deputize.calls k where k.tenant = claim.tenant and k.id = claim.call_id
                          and k.window_ends <= now())
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
            caller_agent, session, fingerprint, claim_scope, claim_key, owner, deadline_at, window_seconds, trace)
        select o.tenant, o.id, 'running', o.tool, o.version, o.digest, o.class, o.usr, o.agent, o.session,
            o.fingerprint, o.scope, o.key, boot, now() + make_interval(secs => o.seconds), o.window_seconds, o.trace
        from unnest(openings_tenant, openings_call_id, openings_tool, openings_version, openings_digest,
                openings_mutation_class, openings_user, openings_agent, openings_session, openings_fingerprint,
                openings_scope, openings_key, openings_seconds, openings_window_seconds, openings_trace)
            as o(tenant, id, tool, version, digest, class, usr, agent, session, fingerprint, scope, key, seconds,
                 window_seconds, trace)
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
                window_ends = case when c.state = 'unknown' then null
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
comment on function deputize.commit_calls_with_conflicts is
    'Commit a batch that conflicts with what is stored: a claimed key, a batch sent before, a call that was taken over. '
    'Called by commit_calls, with the same parameters and results.';

-- Nearly every batch carries new calls under free keys and outcomes of calls that are its own. It is written with plain
-- inserts, which cost about a quarter less than inserts with `on conflict` (those announce each row under a lock and confirm
-- it with a second WAL record). Any conflict undoes all of it and sends the batch to commit_calls_with_conflicts.
create function deputize.commit_calls(
    tenants text[], boot uuid,
    -- openings: a mutation's call row, its claim if it has a key, and its intent entry
    openings_tenant text[] default '{}', openings_call_id uuid[] default '{}', openings_tool text[] default '{}',
    openings_version text[] default '{}', openings_digest text[] default '{}', openings_mutation_class text[] default '{}',
    openings_user text[] default '{}', openings_agent text[] default '{}', openings_session text[] default '{}',
    openings_fingerprint bytea[] default '{}', openings_scope bytea[] default '{}', openings_key bytea[] default '{}',
    openings_seconds float8[] default '{}', openings_window_seconds integer[] default '{}',
    openings_trace text[] default '{}', openings_entry_id uuid[] default '{}', openings_entry bytea[] default '{}',
    openings_salt bytea[] default '{}',
    -- closings: a mutation's outcome, compare-and-set on the owner's epoch
    closings_tenant text[] default '{}', closings_call_id uuid[] default '{}', closings_epoch integer[] default '{}',
    closings_state text[] default '{}', closings_error text[] default '{}', closings_release boolean[] default '{}',
    closings_ciphertext bytea[] default '{}', closings_entry_id uuid[] default '{}', closings_entry bytea[] default '{}',
    closings_salt bytea[] default '{}',
    -- entries that stand alone
    entries_tenant text[] default '{}', entries_id uuid[] default '{}', entries_call_id uuid[] default '{}',
    entries_entry bytea[] default '{}', entries_salt bytea[] default '{}'
) returns setof deputize.commit_result language plpgsql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off
    set plan_cache_mode = force_generic_plan as $$
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
                caller_agent, session, fingerprint, claim_scope, claim_key, owner, deadline_at, window_seconds, trace)
            select o.tenant, o.id, 'running', o.tool, o.version, o.digest, o.class, o.usr, o.agent, o.session,
                o.fingerprint, o.scope, o.key, boot, now() + make_interval(secs => o.seconds), o.window_seconds, o.trace
            from unnest(openings_tenant, openings_call_id, openings_tool, openings_version, openings_digest,
                    openings_mutation_class, openings_user, openings_agent, openings_session, openings_fingerprint,
                    openings_scope, openings_key, openings_seconds, openings_window_seconds, openings_trace)
                as o(tenant, id, tool, version, digest, class, usr, agent, session, fingerprint, scope, key, seconds,
                     window_seconds, trace);

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
                window_ends = case when c.state = 'unknown' then null
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
            openings_salt => openings_salt,
            closings_tenant => closings_tenant, closings_call_id => closings_call_id, closings_epoch => closings_epoch,
            closings_state => closings_state, closings_error => closings_error, closings_release => closings_release,
            closings_ciphertext => closings_ciphertext, closings_entry_id => closings_entry_id, closings_entry => closings_entry,
            closings_salt => closings_salt,
            entries_tenant => entries_tenant, entries_id => entries_id, entries_call_id => entries_call_id,
            entries_entry => entries_entry, entries_salt => entries_salt);
        return;
    end;

    return query
        select 'closed', null::text, c.id, null::uuid, null::bigint, null::bigint, null::bigint
        from unnest(closings_call_id) as c(id);
    return query select * from deputize.select_epochs(tenants);
end $$;
comment on function deputize.commit_calls is
    'Commit a batch of openings, closings and audit entries, all or nothing. Each group is an array per column, all of one '
    'length; a group that is left out is empty.';

create function deputize.take_over_call(
    p_tenant text, p_call_id uuid, p_epoch integer, p_boot uuid, p_seconds float8, p_margin_seconds float8,
    p_entry_id uuid, p_entry bytea, p_salt bytea
) returns setof deputize.commit_result language plpgsql as $$
begin
    perform deputize.acquire_barrier_shared(array[p_tenant]);
    update deputize.calls k
    set state = 'running', owner = p_boot, owner_epoch = k.owner_epoch + 1, ended_at = null, error = null,
        deadline_at = now() + make_interval(secs => p_seconds)
    where k.tenant = p_tenant and k.id = p_call_id and k.owner_epoch = p_epoch
      and (k.state = 'unknown'
           or k.state = 'running' and k.owner <> p_boot and not exists (
               select from deputize.leases l where l.boot = k.owner
               and l.expires_at + make_interval(secs => p_margin_seconds) > now()));
    if found then
        insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
            values (p_tenant, p_entry_id, p_call_id, p_entry, p_salt) on conflict do nothing;
        return query select 'taken_over', p_tenant, p_call_id, p_call_id, null::bigint, null::bigint, null::bigint;
    end if;
    return query select * from deputize.select_epochs(array[p_tenant]);
end $$;
comment on function deputize.take_over_call is
    'Take over a call whose owner is gone or whose outcome is unknown, when its caller retries it. Compare-and-set on the '
    'epoch the caller saw; the claim stays with the call, and the upstream gets the same key again.';
