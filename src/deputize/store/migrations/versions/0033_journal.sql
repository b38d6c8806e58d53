-- The journal: what each write did, and how it is taken back, stored with its outcome.

create sequence deputize.journal_ordinals;
grant usage on sequence deputize.journal_ordinals to deputize_writer;

create table deputize.journal (
    tenant text not null,
    id uuid not null,
    number smallint not null,
    call_id uuid not null,
    caller_user text not null,
    caller_agent text not null,
    session text,
    tool text not null,
    version text not null,
    flow_id text,
    step text,
    resource text not null,
    op text not null check (op in ('create', 'update', 'delete')),
    scope text not null collate "C",
    scope_prefix text collate "C" generated always as (split_part(scope, '*', 1)) stored,
    is_pattern boolean generated always as (strpos(scope, '*') > 0) stored,
    before_digest text,
    after_digest text,
    certainty text not null check (certainty in ('happened', 'uncertain')),
    compensation_class text not null check (compensation_class in ('full', 'semantic', 'partial', 'irreversible')),
    undo_until timestamptz,
    sealed bytea,
    undoes uuid,
    ordinal bigint not null default nextval('deputize.journal_ordinals'),
    began_at timestamptz not null,
    ended_at timestamptz not null default now(),
    primary key (tenant, id, number)
) partition by range (id);
comment on table deputize.journal is
    'What each write changed, a row for each resource, and in the first row, sealed, how it is taken back. The id is '
    'that of the outcome''s audit entry. Rows are only added: an uncertain one no longer counts once its call is settled. '
    'The ordinal is the order in which outcomes were committed, by no gateway''s clock. Of calls that excluded each other '
    'by resource locks it is the order of their effects. Two others may have acted in either order if their times overlap: '
    'a call acted after began_at and before ended_at, by the clock of the database.';
select deputize.secure_table('journal', 'select, insert');
create index journal_by_call on deputize.journal (tenant, call_id);
create index journal_by_scope on deputize.journal (tenant, resource, scope_prefix, ended_at);
create index journal_by_session on deputize.journal (tenant, session, ordinal) where session is not null;
create index journal_by_flow on deputize.journal (tenant, flow_id, ordinal) where flow_id is not null;
create index journal_by_undone on deputize.journal (tenant, undoes) where undoes is not null;

-- The same functions, with one more group of parameters; the release before leaves it out.
-- squawk-ignore ban-drop-function
drop function deputize.settle_unknown_call;
-- squawk-ignore ban-drop-function
drop function deputize.commit_calls;
-- squawk-ignore ban-drop-function
drop function deputize.commit_calls_with_conflicts;

CREATE FUNCTION deputize.commit_calls(tenants text[], boot uuid, openings_tenant text[] DEFAULT '{}'::text[], openings_call_id uuid[] DEFAULT '{}'::uuid[], openings_tool text[] DEFAULT '{}'::text[], openings_version text[] DEFAULT '{}'::text[], openings_digest text[] DEFAULT '{}'::text[], openings_mutation_class text[] DEFAULT '{}'::text[], openings_user text[] DEFAULT '{}'::text[], openings_agent text[] DEFAULT '{}'::text[], openings_session text[] DEFAULT '{}'::text[], openings_fingerprint bytea[] DEFAULT '{}'::bytea[], openings_scope bytea[] DEFAULT '{}'::bytea[], openings_key bytea[] DEFAULT '{}'::bytea[], openings_seconds double precision[] DEFAULT '{}'::double precision[], openings_window_seconds integer[] DEFAULT '{}'::integer[], openings_trace text[] DEFAULT '{}'::text[], openings_entry_id uuid[] DEFAULT '{}'::uuid[], openings_entry bytea[] DEFAULT '{}'::bytea[], openings_salt bytea[] DEFAULT '{}'::bytea[], closings_tenant text[] DEFAULT '{}'::text[], closings_call_id uuid[] DEFAULT '{}'::uuid[], closings_epoch integer[] DEFAULT '{}'::integer[], closings_state text[] DEFAULT '{}'::text[], closings_error text[] DEFAULT '{}'::text[], closings_release boolean[] DEFAULT '{}'::boolean[], closings_ciphertext bytea[] DEFAULT '{}'::bytea[], closings_entry_id uuid[] DEFAULT '{}'::uuid[], closings_entry bytea[] DEFAULT '{}'::bytea[], closings_salt bytea[] DEFAULT '{}'::bytea[], entries_tenant text[] DEFAULT '{}'::text[], entries_id uuid[] DEFAULT '{}'::uuid[], entries_call_id uuid[] DEFAULT '{}'::uuid[], entries_entry bytea[] DEFAULT '{}'::bytea[], entries_salt bytea[] DEFAULT '{}'::bytea[], journal_tenant text[] DEFAULT '{}'::text[], journal_call_id uuid[] DEFAULT '{}'::uuid[], journal_id uuid[] DEFAULT '{}'::uuid[], journal_number smallint[] DEFAULT '{}'::smallint[], journal_flow_id text[] DEFAULT '{}'::text[], journal_step text[] DEFAULT '{}'::text[], journal_resource text[] DEFAULT '{}'::text[], journal_op text[] DEFAULT '{}'::text[], journal_scope text[] DEFAULT '{}'::text[], journal_before_digest text[] DEFAULT '{}'::text[], journal_after_digest text[] DEFAULT '{}'::text[], journal_certainty text[] DEFAULT '{}'::text[], journal_compensation_class text[] DEFAULT '{}'::text[], journal_undo_seconds integer[] DEFAULT '{}'::integer[], journal_sealed bytea[] DEFAULT '{}'::bytea[], journal_undoes uuid[] DEFAULT '{}'::uuid[]) RETURNS SETOF deputize.commit_result
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

            if cardinality(journal_id) > 0 then
                with effects as materialized (
                    -- In the order of the batch: the effects of a call are beside each other, and have one ordinal.
                    select j.*, case when j.number = 0 then nextval('deputize.journal_ordinals')
                                     else currval('deputize.journal_ordinals') end as ordinal
                    from unnest(journal_tenant, journal_call_id, journal_id, journal_number, journal_flow_id, journal_step,
                        journal_resource, journal_op, journal_scope, journal_before_digest, journal_after_digest,
                        journal_certainty, journal_compensation_class, journal_undo_seconds, journal_sealed, journal_undoes)
                        as j(tenant, call_id, id, number, flow_id, step, resource, op, scope, before_digest, after_digest,
                        certainty, compensation_class, undo_seconds, sealed, undoes)
                )
                insert into deputize.journal (tenant, id, number, call_id, caller_user, caller_agent, session, tool, version, flow_id,
                    step, resource, op, scope, before_digest, after_digest, certainty, compensation_class, undo_until, sealed,
                    undoes, ordinal, began_at)
                select j.tenant, j.id, j.number, j.call_id, k.caller_user, k.caller_agent, k.session, k.tool, k.version, j.flow_id,
                    j.step, j.resource, j.op, j.scope, j.before_digest, j.after_digest, j.certainty, j.compensation_class,
                    now() + make_interval(secs => j.undo_seconds), j.sealed, j.undoes, j.ordinal,
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
            openings_salt => openings_salt,
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
            journal_undo_seconds => journal_undo_seconds, journal_sealed => journal_sealed,
            journal_undoes => journal_undoes);
        return;
    end;

    return query
        select 'closed', null::text, c.id, null::uuid, null::bigint, null::bigint, null::bigint
        from unnest(closings_call_id) as c(id);
    return query select * from deputize.select_epochs(tenants);
end $$;
COMMENT ON FUNCTION deputize.commit_calls(tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], closings_tenant text[], closings_call_id uuid[], closings_epoch integer[], closings_state text[], closings_error text[], closings_release boolean[], closings_ciphertext bytea[], closings_entry_id uuid[], closings_entry bytea[], closings_salt bytea[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[], journal_tenant text[], journal_call_id uuid[], journal_id uuid[], journal_number smallint[], journal_flow_id text[], journal_step text[], journal_resource text[], journal_op text[], journal_scope text[], journal_before_digest text[], journal_after_digest text[], journal_certainty text[], journal_compensation_class text[], journal_undo_seconds integer[], journal_sealed bytea[], journal_undoes uuid[]) IS
    'Commit a batch of openings, closings with their journal, and audit entries, all or nothing. Each group is'
    ' an array per column, all of one length; a group that is left out is empty.';

CREATE FUNCTION deputize.commit_calls_with_conflicts(tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], closings_tenant text[], closings_call_id uuid[], closings_epoch integer[], closings_state text[], closings_error text[], closings_release boolean[], closings_ciphertext bytea[], closings_entry_id uuid[], closings_entry bytea[], closings_salt bytea[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[], journal_tenant text[], journal_call_id uuid[], journal_id uuid[], journal_number smallint[], journal_flow_id text[], journal_step text[], journal_resource text[], journal_op text[], journal_scope text[], journal_before_digest text[], journal_after_digest text[], journal_certainty text[], journal_compensation_class text[], journal_undo_seconds integer[], journal_sealed bytea[], journal_undoes uuid[]) RETURNS SETOF deputize.commit_result
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

        if cardinality(journal_id) > 0 then
            with effects as materialized (
                -- In the order of the batch: the effects of a call are beside each other, and have one ordinal.
                select j.*, case when j.number = 0 then nextval('deputize.journal_ordinals')
                                 else currval('deputize.journal_ordinals') end as ordinal
                from unnest(journal_tenant, journal_call_id, journal_id, journal_number, journal_flow_id, journal_step,
                    journal_resource, journal_op, journal_scope, journal_before_digest, journal_after_digest,
                    journal_certainty, journal_compensation_class, journal_undo_seconds, journal_sealed, journal_undoes)
                    as j(tenant, call_id, id, number, flow_id, step, resource, op, scope, before_digest, after_digest,
                    certainty, compensation_class, undo_seconds, sealed, undoes)
            )
            insert into deputize.journal (tenant, id, number, call_id, caller_user, caller_agent, session, tool, version, flow_id,
                step, resource, op, scope, before_digest, after_digest, certainty, compensation_class, undo_until, sealed,
                undoes, ordinal, began_at)
            select j.tenant, j.id, j.number, j.call_id, k.caller_user, k.caller_agent, k.session, k.tool, k.version, j.flow_id,
                j.step, j.resource, j.op, j.scope, j.before_digest, j.after_digest, j.certainty, j.compensation_class,
                now() + make_interval(secs => j.undo_seconds), j.sealed, j.undoes, j.ordinal,
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
COMMENT ON FUNCTION deputize.commit_calls_with_conflicts(tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], closings_tenant text[], closings_call_id uuid[], closings_epoch integer[], closings_state text[], closings_error text[], closings_release boolean[], closings_ciphertext bytea[], closings_entry_id uuid[], closings_entry bytea[], closings_salt bytea[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[], journal_tenant text[], journal_call_id uuid[], journal_id uuid[], journal_number smallint[], journal_flow_id text[], journal_step text[], journal_resource text[], journal_op text[], journal_scope text[], journal_before_digest text[], journal_after_digest text[], journal_certainty text[], journal_compensation_class text[], journal_undo_seconds integer[], journal_sealed bytea[], journal_undoes uuid[]) IS
    'Commit a batch that conflicts with what is stored: a claimed key, a batch sent before, a call that was taken '
    'over. Called by commit_calls, with the same parameters and results.';

CREATE FUNCTION deputize.settle_unknown_call(closing_tenant text, closing_call_id uuid, closing_epoch integer, closing_state text, closing_error text, closing_release boolean, closing_ciphertext bytea, closing_entry_id uuid, closing_entry bytea, closing_salt bytea, journal_tenant text[] DEFAULT '{}'::text[], journal_call_id uuid[] DEFAULT '{}'::uuid[], journal_id uuid[] DEFAULT '{}'::uuid[], journal_number smallint[] DEFAULT '{}'::smallint[], journal_flow_id text[] DEFAULT '{}'::text[], journal_step text[] DEFAULT '{}'::text[], journal_resource text[] DEFAULT '{}'::text[], journal_op text[] DEFAULT '{}'::text[], journal_scope text[] DEFAULT '{}'::text[], journal_before_digest text[] DEFAULT '{}'::text[], journal_after_digest text[] DEFAULT '{}'::text[], journal_certainty text[] DEFAULT '{}'::text[], journal_compensation_class text[] DEFAULT '{}'::text[], journal_undo_seconds integer[] DEFAULT '{}'::integer[], journal_sealed bytea[] DEFAULT '{}'::bytea[], journal_undoes uuid[] DEFAULT '{}'::uuid[]) RETURNS boolean
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
            now() + make_interval(secs => j.undo_seconds), j.sealed, j.undoes, place,
            coalesce(first_began_at, k.created_at), coalesce(last_ended_at, now())
        from unnest(journal_tenant, journal_call_id, journal_id, journal_number, journal_flow_id, journal_step,
            journal_resource, journal_op, journal_scope, journal_before_digest, journal_after_digest,
            journal_certainty, journal_compensation_class, journal_undo_seconds, journal_sealed, journal_undoes)
            as j(tenant, call_id, id, number, flow_id, step, resource, op, scope, before_digest, after_digest,
            certainty, compensation_class, undo_seconds, sealed, undoes)
        join deputize.calls k on k.tenant = j.tenant and k.id = j.call_id;
    end if;
    delete from deputize.reconciliations where tenant = closing_tenant and id = closing_call_id;
    return true;
end $$;
COMMENT ON FUNCTION deputize.settle_unknown_call(closing_tenant text, closing_call_id uuid, closing_epoch integer, closing_state text, closing_error text, closing_release boolean, closing_ciphertext bytea, closing_entry_id uuid, closing_entry bytea, closing_salt bytea, journal_tenant text[], journal_call_id uuid[], journal_id uuid[], journal_number smallint[], journal_flow_id text[], journal_step text[], journal_resource text[], journal_op text[], journal_scope text[], journal_before_digest text[], journal_after_digest text[], journal_certainty text[], journal_compensation_class text[], journal_undo_seconds integer[], journal_sealed bytea[], journal_undoes uuid[]) IS
    'Store the established outcome of a call recorded as unknown. Compare-and-set on the epoch: a call that was '
    'taken over or settled meanwhile is left alone, and false is returned.';

CREATE OR REPLACE PROCEDURE deputize.create_partitions(IN days_ahead integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    parent text;
    part text;
    day date;
begin
    perform pg_advisory_xact_lock(hashtextextended('deputize.create_partitions', 0));
    foreach parent in array array['calls', 'sealed_payloads', 'audit_entries', 'journal'] loop
        for offset_days in -1..least(days_ahead, 31) loop
            day := (now() at time zone 'utc')::date + offset_days;
            part := parent || to_char(day, '_YYYYMMDD');
            continue when to_regclass(format('deputize.%I', part)) is not null;
            -- Made alone and then attached: making one in place locks the parent until every reader and writer is done.
            execute format('create table deputize.%I (like deputize.%I including all)', part, parent);
            execute format('alter table deputize.%I attach partition deputize.%I for values from (%L) to (%L)',
                parent, part, deputize.first_uuid_of_day(day), deputize.first_uuid_of_day(day + 1));
        end loop;
    end loop;
end $$;
COMMENT ON PROCEDURE deputize.create_partitions(IN days_ahead integer) IS
    'Make the partitions of yesterday, today and some days ahead. Called at start and by the sweeper; safe to '
    'repeat.';

CREATE OR REPLACE FUNCTION deputize.erase_calls(p_tenant text, p_calls uuid[], p_placeholder text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
begin
    delete from deputize.sealed_payloads x where x.tenant = p_tenant and x.id = any (p_calls);
    delete from deputize.checkpoints x where x.tenant = p_tenant and x.call_id = any (p_calls);
    delete from deputize.progress x where x.tenant = p_tenant and x.id = any (p_calls);
    delete from deputize.callbacks x where x.tenant = p_tenant and x.id = any (p_calls);
    delete from deputize.deliveries x where x.tenant = p_tenant and x.call_id = any (p_calls);
    delete from deputize.runs x where x.tenant = p_tenant and x.id = any (p_calls);
    with asked as (
        delete from deputize.approvals x where x.tenant = p_tenant and x.call_id = any (p_calls) returning x.id
    ), resolved as (
        delete from deputize.human_tasks x where x.tenant = p_tenant and x.call_id = any (p_calls) returning x.id
    ), ids as (
        select id from asked union select id from resolved
    ), votes as (
        delete from deputize.votes x using ids where x.tenant = p_tenant and x.id = ids.id
    ), groups as (
        delete from deputize.approval_groups x using ids where x.tenant = p_tenant and x.id = ids.id
    ), notices as (
        delete from deputize.notices x using ids where x.tenant = p_tenant and x.approval_id = ids.id
    )
    delete from deputize.notifications x using ids where x.tenant = p_tenant and x.approval_id = ids.id;
    -- Scopes contain arguments. An effect on anything of its resource keeps others from overwriting it unseen.
    update deputize.journal x
    set caller_user = p_placeholder, session = null, flow_id = null, step = null, scope = '*', sealed = null
    where x.tenant = p_tenant and x.call_id = any (p_calls);
    update deputize.audit_entries x set salt = null
    where x.tenant = p_tenant and x.call_id = any (p_calls) and x.salt is not null;
    update deputize.calls x set caller_user = p_placeholder, session = null
    where x.tenant = p_tenant and x.id = any (p_calls);
end $$;
COMMENT ON FUNCTION deputize.erase_calls(p_tenant text, p_calls uuid[], p_placeholder text) IS
    'Delete what ended calls contained, and make their rows anonymous. Entries of the audit log keep their bytes.';

create function deputize.delete_old_journal(p_days integer) returns integer
    language plpgsql security definer
    set search_path to 'pg_catalog'
    as $_$
declare
    part text;
    rows_left integer;
    truncated integer := 0;
begin
    perform deputize.lock_legal_holds(false);
    for part in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'deputize.journal'::regclass
          and case when c.relname ~ '_[0-9]{8}$' then to_date(right(c.relname, 8), 'YYYYMMDD') end < (now() at time zone 'utc')::date - greatest(p_days, 1)
        order by 1
    loop
        execute format('select count(*) from (select from deputize.%I limit 1) as any_left', part) into rows_left;
        continue when rows_left = 0;
        if exists (select from deputize.legal_holds) then
            execute format('delete from deputize.%I j where not deputize.is_call_held(j.tenant, j.call_id, j.caller_user)', part);
        else
            execute format('truncate deputize.%I', part);
            truncated := truncated + 1;
        end if;
    end loop;
    return truncated;
end $_$;
comment on function deputize.delete_old_journal(p_days integer) is
    'Delete journal rows older than so many days, except those of calls under a legal hold. Returns how many days'' '
    'partitions were truncated.';

create function deputize.counts_as_effect(p_tenant text, p_call_id uuid, p_certainty text) returns boolean
    language sql stable
    as $$
    select p_certainty = 'happened' or not exists (
        select from deputize.journal j
        where j.tenant = p_tenant and j.call_id = p_call_id and j.certainty = 'happened'
    ) and not exists (
        select from deputize.calls k where k.tenant = p_tenant and k.id = p_call_id and k.nothing_happened
    )
$$;
comment on function deputize.counts_as_effect(p_tenant text, p_call_id uuid, p_certainty text) is
    'Whether a journal row counts: what happened does, and what is uncertain until its call is settled.';

create function deputize.first_uuid_of_eve(p_id uuid) returns uuid
    language sql immutable
    as $$
    select deputize.first_uuid_of_day(
        (to_timestamp(('x' || left(replace(p_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) at time zone 'utc')::date - 1)
$$;
comment on function deputize.first_uuid_of_eve(p_id uuid) is
    'Return the smallest UUIDv7 of the day before an id was made. What comes later has an id after that one, whichever '
    'gateway''s clock made it, so that the partitions of older days are not looked at.';

create function deputize.is_undone(p_tenant text, p_id uuid) returns boolean
    language plpgsql stable
    as $$
begin
    return exists (
        select from deputize.journal u
        where u.tenant = p_tenant and u.undoes = p_id and u.id >= deputize.first_uuid_of_eve(p_id) and u.certainty = 'happened'
          and not deputize.is_undone(p_tenant, u.id)
    );
end $$;
comment on function deputize.is_undone(p_tenant text, p_id uuid) is
    'Whether another call took this effect back, and no one has taken that back since.';

create function deputize.find_later_effects(p_tenant text, p_resource text, p_scope text, p_id uuid, p_ordinal bigint, p_began_at timestamptz) returns setof deputize.journal
    language sql stable
    as $$
    -- Found through the indexed prefixes, judged by scopes_overlap. What had ended before this one began came before it;
    -- all else may have come after it. An effect that was taken back cancels out with the call that did so.
    select o.* from deputize.journal o
    where o.tenant = p_tenant and o.resource = p_resource and o.id <> p_id and o.ended_at > p_began_at
      and o.id >= deputize.first_uuid_of_eve(p_id)
      and (o.scope_prefix = any(array(
               select left(split_part(p_scope, '*', 1), n) from generate_series(0, length(p_scope)) as n))
           or o.scope_prefix >= split_part(p_scope, '*', 1) || '/' and o.scope_prefix < split_part(p_scope, '*', 1) || '0'
           or (o.is_pattern or strpos(p_scope, '*') > 0) and o.scope_prefix > split_part(p_scope, '*', 1)
              and o.scope_prefix < split_part(p_scope, '*', 1) || chr(1114111))
      and deputize.scopes_overlap(o.scope, p_scope)
      and deputize.counts_as_effect(o.tenant, o.call_id, o.certainty)
      and not deputize.is_undone(o.tenant, o.id)
      and (o.undoes is null or o.certainty = 'uncertain' or not exists (
          select from deputize.journal u
          where u.tenant = p_tenant and u.id = o.undoes and u.number = 0 and u.ordinal > p_ordinal))
$$;
comment on function deputize.find_later_effects(p_tenant text, p_resource text, p_scope text, p_id uuid, p_ordinal bigint, p_began_at timestamptz) is
    'Find every effect after this one, or that may be after it, still there, whose scope overlaps the given one.';

-- A run that continues a call began with that call, which may have acted already.
create or replace function deputize.continue_call_as_run(p_boot uuid, p_tenant text, p_call_id uuid, p_epoch integer, run_input bytea, run_caller bytea, run_not_after timestamp with time zone, run_priority integer, run_release text) returns setof deputize.commit_result
    language plpgsql
    as $$
declare
    began_at timestamptz;
begin
    perform deputize.acquire_barrier_shared(array[p_tenant]);
    update deputize.calls k
    set state = 'queued', ended_at = null, error = null, cancel_requested_at = null
    where k.tenant = p_tenant and k.id = p_call_id and k.owner_epoch = p_epoch
      and (k.state = 'unknown' or k.state = 'running' and k.owner = p_boot and k.cancel_requested_at is null)
    returning k.created_at into began_at;
    if found then
        insert into deputize.runs as r (tenant, id, priority, caller, not_after, release, started_at)
            values (p_tenant, p_call_id, run_priority, run_caller, run_not_after, run_release, began_at)
            on conflict (tenant, id) do update set priority = excluded.priority, caller = excluded.caller,
                not_after = excluded.not_after, release = excluded.release, queued_at = now();
        insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) values (p_tenant, p_call_id, 'input', run_input)
            on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext;
        perform deputize.enqueue_run(p_tenant, p_call_id, run_priority);
        return query select 'continued', p_tenant, p_call_id, p_call_id, null::bigint, null::bigint, null::bigint;
    end if;
    return query select * from deputize.select_epochs(array[p_tenant]);
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function
    deputize.erase_call_rows,
    deputize.erase_calls,
    deputize.erase_cost_tasks,
    deputize.erase_names,
    deputize.erase_stored_values,
    deputize.secure_table
    from deputize_writer;
grant execute on function
    deputize.counts_as_effect,
    deputize.find_later_effects,
    deputize.first_uuid_of_day,
    deputize.first_uuid_of_eve,
    deputize.is_undone,
    deputize.name_pseudonyms,
    deputize.scopes_overlap,
    deputize.search_audit
    to deputize_reader;

call deputize.create_partitions(7);
