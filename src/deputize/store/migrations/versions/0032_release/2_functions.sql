-- The functions of the first release.

set local check_function_bodies = off;

CREATE FUNCTION deputize.acquire_barrier_shared(tenants text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    closed text[];
begin
    if current_setting('deputize.barrier', true) is distinct from 'try' then
        -- Sorted, so that two batches never wait for each other in a circle.
        perform pg_advisory_xact_lock_shared(k)
        from (select distinct deputize.barrier_key(t) as k from unnest(tenants) as t order by 1) as keys;
        return;
    end if;
    select array_agg(each.t) into closed
    from (select distinct t from unnest(tenants) as t) as each
    where not pg_try_advisory_xact_lock_shared(deputize.barrier_key(each.t));
    if closed is not null then
        raise exception using errcode = 'lock_not_available', message = 'an administrative act holds the barrier',
            detail = array_to_json(closed)::text;
    end if;
end $$;
COMMENT ON FUNCTION deputize.acquire_barrier_shared(tenants text[]) IS
    'Acquire the barriers of these tenants, shared, until the commit.';

CREATE FUNCTION deputize.acquire_lock_queues(namespaces text[], resources text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    perform pg_advisory_xact_lock(k) from (
        select distinct hashtextextended('deputize.lock_queue.' || q.namespace || chr(31) || q.resource, 0) as k
        from unnest(namespaces, resources) as q(namespace, resource) order by 1) as keys;
end $$;
COMMENT ON FUNCTION deputize.acquire_lock_queues(namespaces text[], resources text[]) IS
    'Acquire the queues of these resources until the commit, in one order for all, so that no run is told to wait '
    'for one that is just leaving.';

CREATE FUNCTION deputize.advance_approvals(approvals_tenant text[], approvals_id uuid[], approvals_level integer[], groups_tenant text[], groups_id uuid[], groups_name text[], p_reminder_seconds double precision, p_max_reminders integer, p_pause_seconds double precision) RETURNS void
    LANGUAGE sql
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
    with due as (
        select a.tenant, a.id, m.level, a.expires_at <= now() as is_expired, a.reminders_sent as reminders_before,
            greatest(a.reminders_sent, least(p_max_reminders,
                coalesce(floor(extract(epoch from now() - a.opened_at) / nullif(p_reminder_seconds, 0)), 0)))::integer
                as reminders_due
        from unnest(approvals_tenant, approvals_id, approvals_level) as m(tenant, id, level)
        join deputize.approvals a on a.tenant = m.tenant and a.id = m.id
        where a.state = 'open'
    ), added_groups as (
        insert into deputize.approval_groups (tenant, grp, id)
        select g.tenant, g.grp, g.id from unnest(groups_tenant, groups_id, groups_name) as g(tenant, id, grp)
        on conflict do nothing returning tenant, grp, id
    ), escalation_notices as (
        insert into deputize.notices (tenant, approval_id, grp, kind) select tenant, id, grp, 'escalated' from added_groups
    ), reminder_notices as (
        -- For the groups that were there before; a group that was just added needs no reminder.
        insert into deputize.notices (tenant, approval_id, grp, kind)
        select g.tenant, g.id, g.grp, 'reminder'
        from due join deputize.approval_groups g on g.tenant = due.tenant and g.id = due.id
        where due.reminders_due > due.reminders_before and not due.is_expired
    )
    update deputize.approvals a
    set level = due.level, reminders_sent = due.reminders_due,
        -- The caller ends what has expired; if it dies, another comes after the pause.
        next_at = case when due.is_expired then now() + make_interval(secs => p_pause_seconds) else least(
            a.expires_at,
            a.opened_at + make_interval(secs => a.levels[due.level + 1]),
            case when due.reminders_due < p_max_reminders then
                a.opened_at + make_interval(secs => (due.reminders_due + 1) * nullif(p_reminder_seconds, 0)) end) end
    from due where a.tenant = due.tenant and a.id = due.id
$$;
COMMENT ON FUNCTION deputize.advance_approvals(approvals_tenant text[], approvals_id uuid[], approvals_level integer[], groups_tenant text[], groups_id uuid[], groups_name text[], p_reminder_seconds double precision, p_max_reminders integer, p_pause_seconds double precision) IS
    'Advance approval requests that the caller has locked: add the groups of the level they reached, write notices '
    'for them and reminders for the others, and set when each is due next.';

CREATE FUNCTION deputize.approve_call(p_tenant text, p_approval_id uuid, p_resolved_by text, p_reason text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
    approved_call uuid;
    run_priority integer;
begin
    -- By the clock of this moment: the transaction may have begun long ago and waited for the barrier since.
    update deputize.approvals set state = 'approved', next_at = null, closed_at = now()
        where tenant = p_tenant and id = p_approval_id and state = 'open' and expires_at > clock_timestamp()
        returning call_id into approved_call;
    if approved_call is null then
        return false;
    end if;
    update deputize.calls set state = 'queued'
        where tenant = p_tenant and id = approved_call and state = 'awaiting_approval';
    if not found then
        raise exception 'an approval request is open for a call that does not wait for it';
    end if;
    update deputize.human_tasks set state = 'resolved', resolved_at = now(), resolved_by = p_resolved_by,
            resolution = 'approved', reason = p_reason
        where tenant = p_tenant and id = p_approval_id and state = 'open';
    delete from deputize.approval_groups where tenant = p_tenant and id = p_approval_id;
    update deputize.runs set queued_at = now() where tenant = p_tenant and id = approved_call
        returning priority into run_priority;
    perform deputize.enqueue_run(p_tenant, approved_call, run_priority, 0, true);
    return true;
end $$;
COMMENT ON FUNCTION deputize.approve_call(p_tenant text, p_approval_id uuid, p_resolved_by text, p_reason text) IS
    'Queue a call that everybody who is needed has approved. Returns false if its approval request is closed or '
    'expired.';

CREATE FUNCTION deputize.barrier_key(tenant text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ select hashtextextended('deputize.barrier.' || tenant, 0) $$;
COMMENT ON FUNCTION deputize.barrier_key(tenant text) IS 'Return the key of a tenant''s barrier, an advisory lock.';

CREATE FUNCTION deputize.begin_lineage(p_number integer, p_epochs bigint) RETURNS TABLE(id uuid, calls bigint, approvals bigint)
    LANGUAGE plpgsql
    AS $$
begin
    insert into deputize.lineages (number) values (p_number) returning lineages.id into id;
    update deputize.epochs e
    set registry = e.registry + p_epochs, policy = e.policy + p_epochs, revocation = e.revocation + p_epochs;
    with closed as (
        update deputize.approvals a set state = 'void', next_at = null, closed_at = now()
        where a.state in ('open', 'approved') returning a.tenant, a.id
    ), resolved as (
        update deputize.human_tasks t set state = 'resolved', resolved_at = now(), resolved_by = '', resolution = 'void',
            reason = 'the database was restored'
        from closed where t.tenant = closed.tenant and t.id = closed.id and t.state = 'open'
    ), deleted as (
        delete from deputize.approval_groups g using closed where g.tenant = closed.tenant and g.id = closed.id
    )
    select count(*) into approvals from closed;
    -- The next epoch of their owners: no process of before can close them, and none may take them for untouched.
    with ended as (
        update deputize.calls k
        set state = 'unknown', owner_epoch = k.owner_epoch + 1
        where k.state in ('running', 'queued', 'awaiting_approval') returning 1
    )
    select count(*) into calls from ended;
    return next;
end $$;
COMMENT ON FUNCTION deputize.begin_lineage(p_number integer, p_epochs bigint) IS
    'Begin a lineage: authority counts on above all epochs that a gateway may remember, approval requests are void,'
    ' and the outcome of every open call is unknown, because it may have gone on in the time that the database '
    'lost.';

CREATE FUNCTION deputize.begin_run(p_boot uuid, p_tenant text, p_call_id uuid, p_epoch integer, p_seconds double precision, p_margin_seconds double precision, p_entry_id uuid, p_entry bytea, p_salt bytea, locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[]) RETURNS text
    LANGUAGE plpgsql
    AS $$
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
COMMENT ON FUNCTION deputize.begin_run(p_boot uuid, p_tenant text, p_call_id uuid, p_epoch integer, p_seconds double precision, p_margin_seconds double precision, p_entry_id uuid, p_entry bytea, p_salt bytea, locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[]) IS
    'Begin a run from the queue, or take it over from a worker that is gone. Compare-and-set on the epoch. Returns '
    'begun; waits if it has to wait for locks; busy if a living worker executes it; lapsed if the lease of this '
    'worker is over; unapproved without an approval; null if there is nothing left to begin. The commit that begins'
    ' it uses the approval up.';

CREATE FUNCTION deputize.begin_runs(tenants text[], boot uuid, beginnings_tenant text[], beginnings_call_id uuid[], beginnings_epoch integer[], beginnings_seconds double precision[], beginnings_margin double precision[], beginnings_entry_id uuid[], beginnings_entry bytea[], beginnings_salt bytea[], locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[], releases_call_id uuid[], releases_namespace text[], releases_resource text[]) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
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
COMMENT ON FUNCTION deputize.begin_runs(tenants text[], boot uuid, beginnings_tenant text[], beginnings_call_id uuid[], beginnings_epoch integer[], beginnings_seconds double precision[], beginnings_margin double precision[], beginnings_entry_id uuid[], beginnings_entry bytea[], beginnings_salt bytea[], locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[], releases_call_id uuid[], releases_namespace text[], releases_resource text[]) IS
    'Begin a batch of runs, and wake the runs behind those that have just ended.';

CREATE FUNCTION deputize.cancel_approvals() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if not exists (select from deputize.approvals a
        where a.tenant = new.tenant and a.call_id = new.id and a.state in ('open', 'approved')) then
        return null;
    end if;
    with closed as (
        update deputize.approvals set state = 'canceled', next_at = null, closed_at = now()
        where tenant = new.tenant and call_id = new.id and state in ('open', 'approved') returning tenant, id
    ), resolved_tasks as (
        update deputize.human_tasks t set state = 'resolved', resolved_at = now(), resolved_by = '', resolution = 'canceled',
            reason = ''
        from closed where t.tenant = closed.tenant and t.id = closed.id and t.state = 'open'
    )
    delete from deputize.approval_groups g using closed where g.tenant = closed.tenant and g.id = closed.id;
    return null;
end $$;
COMMENT ON FUNCTION deputize.cancel_approvals() IS
    'Trigger: cancel the approval requests of a call that ended before it began.';

CREATE FUNCTION deputize.check_erasure() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    new.requested_at := least(new.requested_at, clock_timestamp());
    if exists (select from deputize.subjects s where s.tenant = new.tenant and s.subject = new.subject
               and deputize.hash_subject(s.salt, s.subject) <> new.pseudonym) then
        raise insufficient_privilege using message = 'the pseudonym of an erasure is not that of its subject';
    end if;
    return new;
end $$;
COMMENT ON FUNCTION deputize.check_erasure() IS
    'Trigger: the entry that an erasure needs names the pseudonym, so that must be the subject''s.';

CREATE FUNCTION deputize.claim_periodic_task(p_name text, p_minutes integer) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    insert into deputize.periodic_tasks as c (name, begun_at) values (p_name, now())
        on conflict (name) do update set begun_at = now()
        where c.begun_at < now() - make_interval(mins => p_minutes);
    return found;
end $$;
COMMENT ON FUNCTION deputize.claim_periodic_task(p_name text, p_minutes integer) IS
    'Claim a periodic task unless another process began it within so many minutes. Returns whether it is the '
    'caller''s to do.';

CREATE FUNCTION deputize.clean_lock_queues() RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    released uuid[];
begin
    if not pg_try_advisory_xact_lock(hashtextextended('deputize.clean_lock_queues', 0)) then
        return;
    end if;
    select array_agg(distinct p.call_id) into released from (
        select call_id from deputize.resource_locks
        where released_at < now() - interval '1 second' order by released_at limit 200) as p;
    if released is not null then
        perform deputize.acquire_lock_queues(array_agg(namespace), array_agg(resource))
            from deputize.resource_locks where call_id = any(released);
        perform deputize.wake_runs_behind(each) from unnest(released) as each;
    end if;
    perform deputize.wake_run(p.tenant, p.call_id, p.priority) from (
        select distinct tenant, call_id, priority from deputize.resource_locks
        where woken_at < now() - interval '5 minutes' and not is_held and released_at is null limit 200) as p;
end $$;
COMMENT ON FUNCTION deputize.clean_lock_queues() IS
    'Do what a dead process left undone: wake the runs behind locks released over a second ago, and again those '
    'that were woken long ago and never tried.';

CREATE FUNCTION deputize.commit_calls(tenants text[], boot uuid, openings_tenant text[] DEFAULT '{}'::text[], openings_call_id uuid[] DEFAULT '{}'::uuid[], openings_tool text[] DEFAULT '{}'::text[], openings_version text[] DEFAULT '{}'::text[], openings_digest text[] DEFAULT '{}'::text[], openings_mutation_class text[] DEFAULT '{}'::text[], openings_user text[] DEFAULT '{}'::text[], openings_agent text[] DEFAULT '{}'::text[], openings_session text[] DEFAULT '{}'::text[], openings_fingerprint bytea[] DEFAULT '{}'::bytea[], openings_scope bytea[] DEFAULT '{}'::bytea[], openings_key bytea[] DEFAULT '{}'::bytea[], openings_seconds double precision[] DEFAULT '{}'::double precision[], openings_window_seconds integer[] DEFAULT '{}'::integer[], openings_trace text[] DEFAULT '{}'::text[], openings_entry_id uuid[] DEFAULT '{}'::uuid[], openings_entry bytea[] DEFAULT '{}'::bytea[], openings_salt bytea[] DEFAULT '{}'::bytea[], closings_tenant text[] DEFAULT '{}'::text[], closings_call_id uuid[] DEFAULT '{}'::uuid[], closings_epoch integer[] DEFAULT '{}'::integer[], closings_state text[] DEFAULT '{}'::text[], closings_error text[] DEFAULT '{}'::text[], closings_release boolean[] DEFAULT '{}'::boolean[], closings_ciphertext bytea[] DEFAULT '{}'::bytea[], closings_entry_id uuid[] DEFAULT '{}'::uuid[], closings_entry bytea[] DEFAULT '{}'::bytea[], closings_salt bytea[] DEFAULT '{}'::bytea[], entries_tenant text[] DEFAULT '{}'::text[], entries_id uuid[] DEFAULT '{}'::uuid[], entries_call_id uuid[] DEFAULT '{}'::uuid[], entries_entry bytea[] DEFAULT '{}'::bytea[], entries_salt bytea[] DEFAULT '{}'::bytea[]) RETURNS SETOF deputize.commit_result
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
COMMENT ON FUNCTION deputize.commit_calls(tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], closings_tenant text[], closings_call_id uuid[], closings_epoch integer[], closings_state text[], closings_error text[], closings_release boolean[], closings_ciphertext bytea[], closings_entry_id uuid[], closings_entry bytea[], closings_salt bytea[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[]) IS
    'Commit a batch of openings, closings and audit entries, all or nothing. Each group is an array per column, all'
    ' of one length; a group that is left out is empty.';

CREATE FUNCTION deputize.commit_calls_with_conflicts(tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], closings_tenant text[], closings_call_id uuid[], closings_epoch integer[], closings_state text[], closings_error text[], closings_release boolean[], closings_ciphertext bytea[], closings_entry_id uuid[], closings_entry bytea[], closings_salt bytea[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[]) RETURNS SETOF deputize.commit_result
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
COMMENT ON FUNCTION deputize.commit_calls_with_conflicts(tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], closings_tenant text[], closings_call_id uuid[], closings_epoch integer[], closings_state text[], closings_error text[], closings_release boolean[], closings_ciphertext bytea[], closings_entry_id uuid[], closings_entry bytea[], closings_salt bytea[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[]) IS
    'Commit a batch that conflicts with what is stored: a claimed key, a batch sent before, a call that was taken '
    'over. Called by commit_calls, with the same parameters and results.';

CREATE FUNCTION deputize.commit_entries(tenants text[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[]) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
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
COMMENT ON FUNCTION deputize.commit_entries(tenants text[], entries_tenant text[], entries_id uuid[], entries_call_id uuid[], entries_entry bytea[], entries_salt bytea[]) IS
    'Commit audit entries that stand alone, such as those of reads and refusals.';

CREATE FUNCTION deputize.continue_call_as_run(p_boot uuid, p_tenant text, p_call_id uuid, p_epoch integer, run_input bytea, run_caller bytea, run_not_after timestamp with time zone, run_priority integer, run_release text) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    AS $$
begin
    perform deputize.acquire_barrier_shared(array[p_tenant]);
    update deputize.calls k
    set state = 'queued', ended_at = null, error = null, cancel_requested_at = null
    where k.tenant = p_tenant and k.id = p_call_id and k.owner_epoch = p_epoch
      and (k.state = 'unknown' or k.state = 'running' and k.owner = p_boot and k.cancel_requested_at is null);
    if found then
        insert into deputize.runs as r (tenant, id, priority, caller, not_after, release)
            values (p_tenant, p_call_id, run_priority, run_caller, run_not_after, run_release)
            on conflict (tenant, id) do update set priority = excluded.priority, caller = excluded.caller,
                not_after = excluded.not_after, release = excluded.release, queued_at = now();
        insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) values (p_tenant, p_call_id, 'input', run_input)
            on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext;
        perform deputize.enqueue_run(p_tenant, p_call_id, run_priority);
        return query select 'continued', p_tenant, p_call_id, p_call_id, null::bigint, null::bigint, null::bigint;
    end if;
    return query select * from deputize.select_epochs(array[p_tenant]);
end $$;
COMMENT ON FUNCTION deputize.continue_call_as_run(p_boot uuid, p_tenant text, p_call_id uuid, p_epoch integer, run_input bytea, run_caller bytea, run_not_after timestamp with time zone, run_priority integer, run_release text) IS
    'Make a run of a call that was begun: its request ran out of time, or its outcome is unknown and its upstream '
    'accepts a repeated key. Compare-and-set on the epoch.';

CREATE FUNCTION deputize.continue_erasure(p_tenant text, p_id uuid, p_limit integer, p_grace_seconds integer) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    erasure deputize.erasures;
    placeholder constant text := 'erased=' || p_id;
    batch uuid[];
    caller constant text := '"caller":["';
    last_id uuid;
begin
    perform deputize.lock_legal_holds(false);
    select * into erasure from deputize.erasures e where e.tenant = p_tenant and e.id = p_id for update skip locked;
    if not found then
        return 'waiting';
    elsif erasure.ended_at is not null then
        return 'done';
    elsif deputize.find_blocking_hold(p_tenant, erasure.subject, erasure.names, erasure.pseudonym) is not null then
        -- Placed after the erasure began: what is left stays until the hold is removed.
        return 'waiting';
    end if;
    select array_agg(c.id) into batch from (
        select k.id from deputize.calls k
        where k.tenant = p_tenant and k.caller_user = erasure.subject and k.created_at <= erasure.requested_at
          and k.ended_at is not null
          and not exists (select from deputize.reconciliations r where r.tenant = k.tenant and r.id = k.id)
          and not exists (select from deputize.human_tasks t where t.tenant = k.tenant and t.call_id = k.id and t.state = 'open')
        order by k.id limit p_limit for update of k
    ) as c;
    if batch is not null then
        if not deputize.erase_call_rows(p_tenant, batch, p_limit) then
            perform deputize.erase_calls(p_tenant, batch, placeholder);
        end if;
        return 'more';
    end if;
    update deputize.grants x set grantor = placeholder, task = null, constraints = null
    where x.tenant = p_tenant and x.id in (
        select g.id from deputize.grants g
        where g.tenant = p_tenant and g.grantor = erasure.subject and g.created_at <= erasure.requested_at limit p_limit
    );
    if found then
        return 'more';
    end if;
    if deputize.erase_names(p_tenant, erasure.subject, erasure.names, placeholder, p_limit)
        or deputize.erase_cost_tasks(p_tenant, erasure.pseudonym, p_limit)
        or deputize.erase_stored_values(p_tenant, erasure.subject, erasure.pseudonym, p_limit) then
        return 'more';
    end if;
    -- Other processes may use the pseudonym for a moment, and open calls of the person write more entries.
    if erasure.requested_at > clock_timestamp() - make_interval(secs => p_grace_seconds) or exists (
        select from deputize.calls k where k.tenant = p_tenant and k.caller_user = erasure.subject
          and k.created_at <= erasure.requested_at
    ) or exists (
        -- A vote that still counts keeps its voter: they could come back and vote again.
        select from deputize.votes v join deputize.approvals a on a.tenant = v.tenant and a.id = v.id
        where v.tenant = p_tenant and v.voter = erasure.subject and a.state = 'open'
    ) then
        return 'waiting';
    end if;
    with page as (
        select e.id, e.entry from deputize.audit_entries e
        where e.tenant = p_tenant and e.id > erasure.last_entry order by e.id limit p_limit
    ), matches as (
        select id, substring(convert_from(entry, 'UTF8') from '"decision":"([^"]+)"') as decision from page
        where position(convert_to(caller || erasure.pseudonym || '"', 'UTF8') in entry) > 0
    ), salts as (
        update deputize.audit_entries x set salt = null from matches m
        where x.tenant = p_tenant and x.id = m.id and x.salt is not null
    ), records as (
        delete from deputize.decisions x using matches m where x.tenant = p_tenant and x.id = m.decision
    )
    select (array_agg(id order by id desc))[1] into last_id from page;
    if last_id is not null then
        update deputize.erasures e set last_entry = last_id where e.tenant = p_tenant and e.id = p_id;
        return 'more';
    end if;
    -- A token of theirs that was refused meanwhile made them a subject again.
    delete from deputize.subjects s where s.tenant = p_tenant and s.subject = erasure.subject
      and not exists (select from deputize.calls k where k.tenant = p_tenant and k.caller_user = erasure.subject);
    update deputize.erasures e set subject = null, names = null, pseudonym = null, ended_at = clock_timestamp()
    where e.tenant = p_tenant and e.id = p_id;
    return 'done';
end $$;
COMMENT ON FUNCTION deputize.continue_erasure(p_tenant text, p_id uuid, p_limit integer, p_grace_seconds integer) IS
    'Erase the next batch of a person''s data: more, done, or waiting for open calls, for other processes, for a '
    'legal hold, or because another process does it. It changes no entry of the audit log, only deletes the salts '
    'beside them.';

CREATE PROCEDURE deputize.create_partitions(IN days_ahead integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    parent text;
    part text;
    day date;
begin
    perform pg_advisory_xact_lock(hashtextextended('deputize.create_partitions', 0));
    foreach parent in array array['calls', 'sealed_payloads', 'audit_entries'] loop
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

CREATE FUNCTION deputize.delete_ended_grants(p_days integer, p_limit integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    deleted_count integer;
begin
    perform deputize.lock_legal_holds(false);
    -- No token of a grant, or of one made from it, is valid after the grant's end. Others are deleted before their parents.
    with ended as (
        select g.tenant, g.id from deputize.grants g
        where g.not_after < now() - make_interval(days => greatest(p_days, 1))
          and not exists (select from deputize.grants c where c.tenant = g.tenant and c.parent = g.id)
          and not exists (select from deputize.legal_holds h where h.tenant = g.tenant
                          and (h.subject = g.grantor or h.kind in ('period', 'call')))
        order by g.not_after limit p_limit for update skip locked
    ), forgotten_revocations as (
        delete from deputize.revocations r using ended e
        where r.tenant = e.tenant and r.kind in ('grant', 'token') and r.value = e.id::text
    ), deleted as (
        delete from deputize.grants g using ended e where g.tenant = e.tenant and g.id = e.id returning g.id
    )
    select count(*) into deleted_count from deleted;
    return deleted_count;
end $$;
COMMENT ON FUNCTION deputize.delete_ended_grants(p_days integer, p_limit integer) IS
    'Delete grants that ended more than so many days ago, and the revocations of their ids, some at a time. Other '
    'revocations stay: it is not known when the tokens they are about expire. Returns how many grants were deleted.';

CREATE FUNCTION deputize.delete_old_decisions(p_days integer, p_limit integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    deleted_count integer;
begin
    perform deputize.lock_legal_holds(false);
    -- A process notes once a day that it relies on a record, to the day: a record may be two days newer than it says.
    -- Calls share records, so that a hold keeps all of its tenant.
    with old as (
        select d.tenant, d.id from deputize.decisions d
        where d.last_at < now() - make_interval(days => greatest(p_days, 1) + 2)
          and not exists (select from deputize.legal_holds h where h.tenant = d.tenant)
        order by d.last_at limit p_limit for update skip locked
    ), deleted as (
        delete from deputize.decisions d using old o where d.tenant = o.tenant and d.id = o.id returning d.id
    )
    select count(*) into deleted_count from deleted;
    return deleted_count;
end $$;
COMMENT ON FUNCTION deputize.delete_old_decisions(p_days integer, p_limit integer) IS
    'Delete decision records that no decision relied on for so many days, some at a time. Returns how many.';

CREATE FUNCTION deputize.delete_old_payloads(p_days integer) RETURNS integer
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
    -- A claim whose window is over means nothing: the next call with its key takes it anyway.
    delete from deputize.claims c using deputize.calls k
    where k.tenant = c.tenant and k.id = c.call_id and k.window_ends < now() - interval '1 day'
      and c.call_id < deputize.first_uuid_of_day((now() at time zone 'utc')::date - p_days);
    return truncated;
end $_$;
COMMENT ON FUNCTION deputize.delete_old_payloads(p_days integer) IS
    'Delete sealed payloads and runs of calls that ended more than so many days ago, and claims whose window is '
    'over. Returns how many days'' partitions were truncated.';

CREATE FUNCTION deputize.end_unstarted_calls(tenants text[], p_approval_state text, p_resolved_by text, p_reason text, ends_tenant text[], ends_call_id uuid[], ends_epoch integer[], ends_state text[], ends_error text[], ends_ciphertext bytea[], ends_entry_id uuid[], ends_entry bytea[]) RETURNS SETOF uuid
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
            window_ends = now() + make_interval(secs => k.window_seconds)
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
COMMENT ON FUNCTION deputize.end_unstarted_calls(tenants text[], p_approval_state text, p_resolved_by text, p_reason text, ends_tenant text[], ends_call_id uuid[], ends_epoch integer[], ends_state text[], ends_error text[], ends_ciphertext bytea[], ends_entry_id uuid[], ends_entry bytea[]) IS
    'End calls that wait for approval, or were approved and not begun: their approvals become denied, expired or '
    'void. Compare-and-set on the epoch; what was begun, has ended or, by the database''s clock, has not expired is'
    ' left alone. Returns the calls it ended.';

CREATE FUNCTION deputize.enqueue_entries() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    insert into deputize.log_queue (tenant, entry_id) select e.tenant, e.id from new_entries as e;
    return null;
end $$;
COMMENT ON FUNCTION deputize.enqueue_entries() IS 'Queue new audit entries for the log of their tenant.';

CREATE FUNCTION deputize.enqueue_run(p_tenant text, p_call_id uuid, p_priority integer, p_delay_seconds double precision DEFAULT 0, p_waited boolean DEFAULT false) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    before integer;
begin
    update deputize.runs set enqueue_count = enqueue_count + 1 where tenant = p_tenant and id = p_call_id
        returning enqueue_count - 1 into before;
    perform dbos.enqueue_workflow(
        workflow_name => 'carry', queue_name => 'runs',
        positional_args => array[to_json(p_tenant), to_json(p_call_id::text)],
        -- The engine forgets no id, so a run that is given to it again gets its id and a number.
        workflow_id => case when before = 0 then p_call_id::text else p_call_id::text || ':' || before end,
        -- A run that has waited goes before new ones of its priority.
        priority => 2 * p_priority - case when p_waited then 1 else 0 end, queue_partition_key => p_tenant,
        delay_until_epoch_ms =>
            case when p_delay_seconds > 0 then (1000 * (extract(epoch from now()) + p_delay_seconds))::bigint end);
end $$;
COMMENT ON FUNCTION deputize.enqueue_run(p_tenant text, p_call_id uuid, p_priority integer, p_delay_seconds double precision, p_waited boolean) IS
    'Give a run to the engine, inside the transaction that calls this: a rollback leaves nothing there either. Runs'
    ' with the owner''s rights, so that no other role needs any in the engine''s schema.';

CREATE FUNCTION deputize.erase_call_rows(p_tenant text, p_calls uuid[], p_limit integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    progress_count integer;
    checkpoint_count integer;
begin
    delete from deputize.progress x using (
        select p.id, p.seq from deputize.progress p where p.tenant = p_tenant and p.id = any (p_calls) limit p_limit
    ) as few where x.tenant = p_tenant and x.id = few.id and x.seq = few.seq;
    get diagnostics progress_count = row_count;
    delete from deputize.checkpoints x using (
        select c.call_id, c.seq from deputize.checkpoints c
        where c.tenant = p_tenant and c.call_id = any (p_calls) limit p_limit
    ) as few where x.tenant = p_tenant and x.call_id = few.call_id and x.seq = few.seq;
    get diagnostics checkpoint_count = row_count;
    return progress_count = p_limit or checkpoint_count = p_limit;
end $$;
COMMENT ON FUNCTION deputize.erase_call_rows(p_tenant text, p_calls uuid[], p_limit integer) IS
    'Delete what ended calls may have any number of, progress and checkpoints, so many rows of each. True if there '
    'may be more.';

CREATE FUNCTION deputize.erase_calls(p_tenant text, p_calls uuid[], p_placeholder text) RETURNS void
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
    update deputize.audit_entries x set salt = null
    where x.tenant = p_tenant and x.call_id = any (p_calls) and x.salt is not null;
    update deputize.calls x set caller_user = p_placeholder, session = null
    where x.tenant = p_tenant and x.id = any (p_calls);
end $$;
COMMENT ON FUNCTION deputize.erase_calls(p_tenant text, p_calls uuid[], p_placeholder text) IS
    'Delete what ended calls contained, and make their rows anonymous. Entries of the audit log keep their bytes.';

CREATE FUNCTION deputize.erase_cost_tasks(p_tenant text, p_pseudonym text, p_limit integer) RETURNS boolean
    LANGUAGE sql
    SET search_path TO 'pg_catalog'
    AS $$
    with few as (
        select c.tenant, c.day, c.tool, c.version, c.caller, c.task, c.currency from deputize.call_costs c
        where c.tenant = p_tenant and c.caller[1] = p_pseudonym and c.task <> '' limit p_limit for update
    ), erased as (
        delete from deputize.call_costs c using few f
        where c.tenant = f.tenant and c.day = f.day and c.tool = f.tool and c.version = f.version
          and c.caller = f.caller and c.task = f.task and c.currency = f.currency
        returning c.*
    ), added as (
        insert into deputize.call_costs as c
            (tenant, day, tool, version, caller, task, currency, calls, compute_seconds, storage_bytes, network_bytes,
             tokens, reviews, review_seconds, compute_cost, external_api_cost, storage_io_cost, network_cost, token_cost,
             human_review_cost)
        select e.tenant, e.day, e.tool, e.version, e.caller, '', e.currency, sum(e.calls), sum(e.compute_seconds),
               sum(e.storage_bytes), sum(e.network_bytes), sum(e.tokens), sum(e.reviews), sum(e.review_seconds),
               sum(e.compute_cost), sum(e.external_api_cost), sum(e.storage_io_cost), sum(e.network_cost),
               sum(e.token_cost), sum(e.human_review_cost)
        from erased e
        group by e.tenant, e.day, e.tool, e.version, e.caller, e.currency
        on conflict (tenant, day, tool, version, caller, task, currency) do update
        set calls = c.calls + excluded.calls,
            compute_seconds = c.compute_seconds + excluded.compute_seconds,
            storage_bytes = c.storage_bytes + excluded.storage_bytes,
            network_bytes = c.network_bytes + excluded.network_bytes,
            tokens = c.tokens + excluded.tokens,
            reviews = c.reviews + excluded.reviews,
            review_seconds = c.review_seconds + excluded.review_seconds,
            compute_cost = c.compute_cost + excluded.compute_cost,
            external_api_cost = c.external_api_cost + excluded.external_api_cost,
            storage_io_cost = c.storage_io_cost + excluded.storage_io_cost,
            network_cost = c.network_cost + excluded.network_cost,
            token_cost = c.token_cost + excluded.token_cost,
            human_review_cost = c.human_review_cost + excluded.human_review_cost
    )
    select count(*) = p_limit from few
$$;
COMMENT ON FUNCTION deputize.erase_cost_tasks(p_tenant text, p_pseudonym text, p_limit integer) IS
    'Forget for which tasks the calls of a person were, because a task may name them, in so many rows; what they '
    'cost stays. True if there may be more.';

CREATE FUNCTION deputize.erase_names(p_tenant text, p_subject text, p_names text[], p_placeholder text, p_limit integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $_$
declare
    part record;
    rows tid[];
    is_more boolean := false;
begin
    for part in values
        ('votes', 'voter', true), ('human_tasks', 'resolved_by', true), ('secrets', 'updated_by', false),
        ('policies', 'put_by', false), ('tool_versions', 'registered_by', false), ('deprecated_uses', 'caller_user', false),
        ('server_changes', 'decided_by', true), ('server_pins', 'accepted_by', false), ('switches', 'turned_by', true),
        ('revocations', 'revoked_by', true), ('legal_holds', 'placed_by', true)
    loop
        -- Locked first, and changed by a second statement: a row that someone else is changing keeps its place then.
        execute format('select array_agg(f.ctid) from (select x.ctid from deputize.%I x where x.tenant = $1 and x.%I = $2 %s
                        limit $3 for update) as f', part.column1, part.column2,
                       case part.column1 when 'votes' then 'and not exists (select from deputize.approvals a
                            where a.tenant = x.tenant and a.id = x.id and a.state = ''open'')' else '' end) into rows using p_tenant, p_subject, p_limit;
        continue when rows is null;
        is_more := is_more or cardinality(rows) = p_limit;
        -- Who acts again while they are erased is in rows beside those that were erased before: these two tables have the
        -- person in their keys.
        if part.column1 = 'deprecated_uses' then
            with erased as (delete from deputize.deprecated_uses x where x.ctid = any (rows) returning x.*)
            insert into deputize.deprecated_uses as u
                (tenant, name, version, caller_user, caller_agent, day, calls, last_used_at)
            select e.tenant, e.name, e.version, p_placeholder, e.caller_agent, e.day, e.calls, e.last_used_at from erased e
            on conflict (tenant, name, version, caller_user, caller_agent, day) do update
            set calls = u.calls + excluded.calls, last_used_at = greatest(u.last_used_at, excluded.last_used_at);
            continue;
        elsif part.column1 = 'votes' then
            delete from deputize.votes x using deputize.votes y
            where x.ctid = any (rows) and y.tenant = x.tenant and y.id = x.id and y.voter = p_placeholder;
        end if;
        execute format('update deputize.%I x set %I = $1 %s where x.ctid = any ($2)', part.column1, part.column2,
                       case when part.column3 then ', reason = ''''' else '' end) using p_placeholder, rows;
    end loop;
    -- A proposal without its proposer could be confirmed by themselves.
    delete from deputize.policy_proposals x where x.tenant = p_tenant and x.proposed_by = p_subject;
    -- A revocation of the person stays in force, by a digest: deleting it would give their authority back.
    delete from deputize.revocations x
    where x.tenant = p_tenant and x.kind in ('user', 'subject') and x.value = any (p_names)
      and exists (select from deputize.revocations y where y.tenant = x.tenant and y.kind = x.kind
                  and y.value = 'sha256=' || encode(sha256(convert_to(x.tenant || ' ' || x.value, 'UTF8')), 'hex'));
    update deputize.revocations x
    set value = 'sha256=' || encode(sha256(convert_to(x.tenant || ' ' || x.value, 'UTF8')), 'hex'), reason = ''
    where x.tenant = p_tenant and x.kind in ('user', 'subject') and x.value = any (p_names);
    return is_more;
end $_$;
COMMENT ON FUNCTION deputize.erase_names(p_tenant text, p_subject text, p_names text[], p_placeholder text, p_limit integer) IS
    'Replace a person''s name in what they decided or changed, and in revocations of them, in so many rows of each '
    'table. True if there may be more.';

CREATE FUNCTION deputize.erase_stored_values(p_tenant text, p_subject text, p_pseudonym text, p_limit integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    value_count integer;
    chunk_count integer;
    result_count integer := 0;
begin
    delete from deputize.observed_values x using (
        select v.rule, v.entity, v.tool from deputize.observed_values v
        where v.tenant = p_tenant and v.subject = p_pseudonym limit p_limit
    ) as few
    where x.tenant = p_tenant and x.subject = p_pseudonym
      and x.rule = few.rule and x.entity = few.entity and x.tool = few.tool;
    get diagnostics value_count = row_count;
    delete from deputize.result_chunks x using (
        select c.reference, c.number from deputize.results r
        join deputize.result_chunks c on c.tenant = r.tenant and c.reference = r.reference
        where r.tenant = p_tenant and r.caller_user = p_subject limit p_limit
    ) as few where x.tenant = p_tenant and x.reference = few.reference and x.number = few.number;
    get diagnostics chunk_count = row_count;
    if chunk_count < p_limit then
        delete from deputize.results x where x.tenant = p_tenant and x.reference in (
            select r.reference from deputize.results r where r.tenant = p_tenant and r.caller_user = p_subject limit p_limit
        );
        get diagnostics result_count = row_count;
    end if;
    return p_limit in (value_count, chunk_count, result_count);
end $$;
COMMENT ON FUNCTION deputize.erase_stored_values(p_tenant text, p_subject text, p_pseudonym text, p_limit integer) IS
    'Delete long results of a person and values that were observed for them, so many rows of each table. True if '
    'there may be more.';

CREATE FUNCTION deputize.expire_entries(p_tenant text, p_days integer, p_first_index bigint, p_end_index bigint, p_entry_id uuid, p_entry bytea) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
begin
    perform deputize.lock_legal_holds(false);
    perform pg_advisory_xact_lock(hashtextextended('deputize expiry ' || p_tenant, 0));
    perform from deputize.plan_expiry(p_tenant, p_days, (p_end_index - p_first_index)::integer) as p
    where p.first_index = p_first_index and p.end_index = p_end_index;
    if not found then
        return false;
    end if;
    insert into deputize.audit_entries (tenant, id, call_id, entry, salt) values (p_tenant, p_entry_id, null, p_entry, null);
    insert into deputize.log_expiries (tenant, end_index, entry_id) values (p_tenant, p_end_index, p_entry_id);
    delete from deputize.audit_entries e using deputize.log_leaves l
    where l.tenant = p_tenant and l.leaf_index >= p_first_index and l.leaf_index < p_end_index
      and e.tenant = l.tenant and e.id = l.entry_id;
    return true;
end $$;
COMMENT ON FUNCTION deputize.expire_entries(p_tenant text, p_days integer, p_first_index bigint, p_end_index bigint, p_entry_id uuid, p_entry bytea) IS
    'Delete the entries that plan_expiry found, and write the entry that says so, in one transaction. Their hashes '
    'stay. False if the plan has changed meanwhile.';

CREATE FUNCTION deputize.find_blocking_hold(p_tenant text, p_subject text, p_names text[], p_pseudonym text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    hold deputize.legal_holds;
    caller constant text := '"caller":["' || p_pseudonym || '"';
begin
    for hold in select * from deputize.legal_holds h where h.tenant = p_tenant order by h.kind = 'period', h.placed_at loop
        if hold.subject = p_subject or hold.subject = any (p_names) then
            return hold.id;
        elsif hold.call_id is not null and (
            exists (select from deputize.calls k
                    where k.tenant = p_tenant and k.id = hold.call_id and k.caller_user = p_subject)
            or exists (select from deputize.audit_entries e where e.tenant = p_tenant and e.call_id = hold.call_id
                       and position(convert_to(caller, 'UTF8') in e.entry) > 0)
        ) then
            return hold.id;
        elsif hold.kind = 'period' then
            if exists (select from deputize.calls k where k.tenant = p_tenant and k.caller_user = p_subject
                       and k.id >= hold.first_id and k.id < hold.before_id) then
                return hold.id;
            end if;
            -- A search that runs out of time answers with a row too: what is not known to be free is held.
            perform set_config('deputize.tenant', p_tenant, true);
            perform from deputize.search_audit(array['user=' || p_pseudonym],
                jsonb_build_array(jsonb_build_array(caller)), hold.first_id, hold.before_id, 1, 500);
            if found then
                return hold.id;
            end if;
        end if;
    end loop;
    return null;
end $$;
COMMENT ON FUNCTION deputize.find_blocking_hold(p_tenant text, p_subject text, p_names text[], p_pseudonym text) IS
    'Find a legal hold that forbids to erase a person: of them, of a call of theirs, or of a period in which they '
    'acted.';

CREATE FUNCTION deputize.find_overlapping_locks(p_namespace text, p_resource text, p_scope text) RETURNS SETOF deputize.resource_locks
    LANGUAGE sql STABLE
    AS $$
    -- Found through the indexed prefixes, judged by scopes_overlap.
    select o.* from deputize.resource_locks o
    where o.namespace = p_namespace and o.resource = p_resource and o.released_at is null
      and (o.scope_prefix = any(array(
               select left(split_part(p_scope, '*', 1), n) from generate_series(0, length(p_scope)) as n))
           or o.scope_prefix >= split_part(p_scope, '*', 1) || '/' and o.scope_prefix < split_part(p_scope, '*', 1) || '0'
           or (o.is_pattern or strpos(p_scope, '*') > 0) and o.scope_prefix > split_part(p_scope, '*', 1)
              and o.scope_prefix < split_part(p_scope, '*', 1) || chr(1114111))
      and deputize.scopes_overlap(o.scope, p_scope)
$$;
COMMENT ON FUNCTION deputize.find_overlapping_locks(p_namespace text, p_resource text, p_scope text) IS
    'Find every lock in one queue, held or waiting, whose scope overlaps the given one.';

CREATE FUNCTION deputize.first_uuid_of_day(day date) RETURNS uuid
    LANGUAGE sql IMMUTABLE
    AS $$
    select (lpad(to_hex((extract(epoch from day::timestamp) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;
COMMENT ON FUNCTION deputize.first_uuid_of_day(day date) IS
    'Return the smallest UUIDv7 of a day, where the day''s partition begins.';

CREATE FUNCTION deputize.get_audit_period(p_id uuid) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
    select ('x' || substr(p_id::text, 1, 8))::bit(32)::bigint >> 4
$$;
COMMENT ON FUNCTION deputize.get_audit_period(p_id uuid) IS
    'Return the number of the 17 minutes that an id was made in: terms are indexed below it, so that a search reads'
    ' few.';

CREATE FUNCTION deputize.hash_entry(p_entry bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
    select sha256('\x00'::bytea || case when octet_length(p_entry) <= 65535 then p_entry else convert_to(
        format('{"entry_sha256":"%s","entry_size":%s,"v":"large-entry/1"}', encode(sha256(p_entry), 'hex'),
               octet_length(p_entry)), 'UTF8') end)
$$;
COMMENT ON FUNCTION deputize.hash_entry(p_entry bytea) IS
    'Compute the hash of an entry as a leaf of its log, as evidence/log/leaf.py does.';

CREATE FUNCTION deputize.hash_subject(p_salt bytea, p_subject text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
    select encode(sha256(p_salt || convert_to(p_subject, 'UTF8')), 'hex')
$$;
COMMENT ON FUNCTION deputize.hash_subject(p_salt bytea, p_subject text) IS
    'Compute the pseudonym of a subject, as store/pseudonyms.py does.';

CREATE FUNCTION deputize.is_approved(p_tenant text, p_call_id uuid, p_epoch integer) RETURNS boolean
    LANGUAGE sql
    AS $$
    select exists (select from deputize.approvals a where a.tenant = p_tenant and a.call_id = p_call_id
        and (a.state = 'approved' and a.expires_at > clock_timestamp() or a.state = 'used' and p_epoch > 0))
$$;
COMMENT ON FUNCTION deputize.is_approved(p_tenant text, p_call_id uuid, p_epoch integer) IS
    'Whether a call that needs approval may begin: with an approval that has not expired by this moment (not by '
    'when the transaction began), or, taken over from an owner that had begun it, with the one that owner used.';

CREATE FUNCTION deputize.is_call_held(p_tenant text, p_call_id uuid, p_user text) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog'
    AS $$
    select exists (
        select from deputize.legal_holds h
        where h.tenant = p_tenant
          and (h.subject = p_user or h.call_id = p_call_id or p_call_id >= h.first_id and p_call_id < h.before_id))
$$;
COMMENT ON FUNCTION deputize.is_call_held(p_tenant text, p_call_id uuid, p_user text) IS
    'Tell whether a legal hold covers a call.';

CREATE FUNCTION deputize.keep_subject() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    if not exists (
        select from deputize.erasures e where e.tenant = old.tenant and e.subject = old.subject and e.ended_at is null
    ) then
        raise insufficient_privilege using message = 'a subject is deleted by its erasure only';
    end if;
    return old;
end $$;
COMMENT ON FUNCTION deputize.keep_subject() IS 'Trigger: keep the salt of a person who is not being erased.';

CREATE FUNCTION deputize.list_audit_terms(p_tenant text, p_id uuid, p_entry bytea) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE STRICT COST 1000 PARALLEL SAFE
    AS $$
declare
    body text := convert_from(p_entry, 'UTF8');
    period constant bigint := ('x' || substr(p_id::text, 1, 8))::bit(32)::bigint >> 4 << 35;
    seed constant bigint := hashtextextended(p_tenant, 0);
    labels text[] := '{}';
    terms bigint[] := '{}';
    value text;
begin
    if position('"caller":["' in body) > 0 then
        value := split_part(split_part(body, '"caller":["', 2), '"]', 1);
        labels := string_to_array('user=' || replace(value, '","', E'\nagent='), E'\n');
    end if;
    if position('"approval":"' in body) > 0 then
        labels := labels || 'decision=ask'::text;
    end if;
    -- Keys are sorted, so all others come after the kind. What most entries have in common is not indexed.
    body := split_part(body, ',"kind":"', 2);
    value := split_part(body, '"', 1);
    if value not in ('read', 'intent', 'outcome') then
        labels := labels || ('kind=' || value);
    end if;
    value := split_part(split_part(body, ',"outcome":"', 2), '"', 1);
    if value not in ('', 'succeeded') then
        labels := labels || ('outcome=' || value);
        if value in ('denied', 'blocked') then
            labels := labels || 'decision=deny'::text;
        end if;
    end if;
    value := split_part(split_part(body, ',"rules":["', 2), '"]', 1);
    if value <> '' then
        labels := labels || string_to_array('rule=' || replace(value, '","', E'\nrule='), E'\n');
    end if;
    value := split_part(split_part(body, ',"scopes":["', 2), '"]', 1);
    if value <> '' then
        for value in select distinct split_part(scope, ' ', 2) from unnest(string_to_array(value, '","')) as scope loop
            labels := labels || ('resource=' || value);
        end loop;
    end if;
    value := split_part(split_part(body, ',"session":"', 2), '"', 1);
    if value <> '' then
        labels := labels || ('session=' || value);
    end if;
    value := split_part(split_part(body, ',"tool":"', 2), '"', 1);
    if value <> '' then
        labels := labels || ('tool=' || value);
    end if;
    value := split_part(split_part(body, ',"trace":"', 2), '"', 1);
    foreach value in array labels || ('trace=' || value) loop
        terms := terms || (period | (hashtextextended(value, seed) & 34359738367));
    end loop;
    return terms;
end $$;
COMMENT ON FUNCTION deputize.list_audit_terms(p_tenant text, p_id uuid, p_entry bytea) IS
    'List the terms that an audit entry is indexed by: a hash of each label, such as tool=crm.get_user, below the '
    'number of the 17 minutes that its id is in. Values are taken as the JSON has them, up to the first quote.';

CREATE FUNCTION deputize.lock_due_approvals(p_limit integer) RETURNS TABLE(tenant text, id uuid, call_id uuid, tool text, level integer, levels double precision[], demands bytea, expires_at timestamp with time zone, is_expired boolean, due_level integer, age double precision, owner_epoch integer, trace text, session text)
    LANGUAGE sql
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    AS $$
    with due as materialized (
        select a.tenant, a.id, a.call_id, a.tool, a.level, a.levels, a.demands, a.opened_at, a.expires_at
        from deputize.approvals a
        where a.next_at <= now() order by a.next_at limit p_limit for update skip locked
    )
    select d.tenant, d.id, d.call_id, d.tool, d.level, d.levels, case when r.due_level > d.level then d.demands end,
        d.expires_at, d.expires_at <= now(), r.due_level, extract(epoch from now() - d.opened_at)::float8,
        k.owner_epoch, k.trace, k.session
    from due d
    cross join lateral (select count(*)::integer as due_level from unnest(d.levels) as s
        where d.opened_at + make_interval(secs => s) <= now()) as r
    left join deputize.calls k on k.tenant = d.tenant and k.id = d.call_id and d.expires_at <= now()
$$;
COMMENT ON FUNCTION deputize.lock_due_approvals(p_limit integer) IS
    'Lock and return approval requests that something is due of, skipping those another process has locked. Their '
    'calls are not locked: anyone who ends a call locks the call first and its request after it.';

CREATE FUNCTION deputize.lock_legal_holds(p_exclusive boolean) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog'
    AS $$
    select case when p_exclusive then pg_advisory_xact_lock(hashtextextended('deputize legal holds', 0))
           else pg_advisory_xact_lock_shared(hashtextextended('deputize legal holds', 0)) end
$$;
COMMENT ON FUNCTION deputize.lock_legal_holds(p_exclusive boolean) IS
    'Keep holds from being placed while something is deleted, until the transaction ends; exclusively, to place '
    'one.';

CREATE FUNCTION deputize.merge_audit_terms() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    index_id regclass;
    merged bigint := 0;
begin
    -- Entries are written to the partitions of today and, around midnight, of its neighbours.
    for index_id in
        select i.inhrelid::regclass from pg_inherits i
        join pg_index x on x.indexrelid = i.inhrelid join pg_class t on t.oid = x.indrelid
        where i.inhparent = to_regclass('deputize.audit_entries_by_terms')
          and t.relname >= 'audit_entries' || to_char((now() at time zone 'utc')::date - 1, '_YYYYMMDD')
          and t.relname <= 'audit_entries' || to_char((now() at time zone 'utc')::date + 1, '_YYYYMMDD')
    loop
        merged := merged + gin_clean_pending_list(index_id);
    end loop;
    return merged;
end $$;
COMMENT ON FUNCTION deputize.merge_audit_terms() IS
    'Merge the terms of new audit entries into the index, so that no commit has to. Returns how many pages were '
    'merged.';

CREATE FUNCTION deputize.must_wait_for_locks(p_tenant text, p_call_id uuid) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
    mine deputize.resource_locks;
    others integer;
begin
    for mine in
        select * from deputize.resource_locks p where p.tenant = p_tenant and p.call_id = p_call_id and not p.is_held
    loop
        select count(*) into others from (
            (select from deputize.find_overlapping_locks(mine.namespace, mine.resource, mine.scope) o
             where o.is_held and o.call_id <> mine.call_id limit mine.capacity)
            union all
            -- In a queue that tenants share no one comes first: one tenant's turn must not depend on another's queue.
            (select from deputize.find_overlapping_locks(mine.namespace, mine.resource, mine.scope) o
             where not o.is_held and mine.namespace <> '' and o.call_id <> mine.call_id
               and (o.priority, o.requested_at, o.call_id) < (mine.priority, mine.requested_at, mine.call_id)
             limit mine.capacity)) as found;
        if others >= mine.capacity then
            return true;
        end if;
    end loop;
    return false;
end $$;
COMMENT ON FUNCTION deputize.must_wait_for_locks(p_tenant text, p_call_id uuid) IS
    'Whether another call holds a lock this call needs, or waits for it ahead of this call.';

CREATE FUNCTION deputize.name_pseudonyms(p_pseudonyms text[]) RETURNS TABLE(pseudonym text, subject text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
    select deputize.hash_subject(s.salt, s.subject), s.subject from deputize.subjects s
    where s.tenant = current_setting('deputize.tenant', true)
      and deputize.hash_subject(s.salt, s.subject) = any (p_pseudonyms)
$$;
COMMENT ON FUNCTION deputize.name_pseudonyms(p_pseudonyms text[]) IS
    'Name the subjects behind pseudonyms, of the tenant that the reader names. Nothing is named whose salt was '
    'erased.';

CREATE FUNCTION deputize.observe_value(p_tenant text, p_subject text, p_rule text, p_entity bytea, p_tool text, p_authority_rank integer, p_call_id uuid, p_sealed bytea, p_within_seconds double precision, p_max_values integer) RETURNS TABLE(tool text, authority_rank integer, call_id uuid, sealed bytea, seen_at timestamp with time zone)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    SET lock_timeout TO '2s'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    at timestamptz;
    is_new boolean;
    oldest timestamptz;
begin
    -- Of two tools that say something at the same moment, one waits for the other and sees what it said.
    perform pg_advisory_xact_lock(hashtextextended(
        'deputize.observe_value ' || p_tenant || ' ' || p_subject || ' ' || p_rule || ' ' || encode(p_entity, 'hex'), 0));
    at := clock_timestamp();
    insert into deputize.observed_values as v
        (tenant, subject, rule, entity, tool, authority_rank, call_id, sealed, seen_at, expires_at)
    values (p_tenant, p_subject, p_rule, p_entity, p_tool, p_authority_rank, p_call_id, p_sealed, at,
            at + make_interval(secs => p_within_seconds))
    on conflict (tenant, subject, rule, entity, tool) do update
    set authority_rank = excluded.authority_rank, call_id = excluded.call_id, sealed = excluded.sealed,
        seen_at = excluded.seen_at, expires_at = excluded.expires_at
    returning v.xmax = 0 into is_new;
    if is_new then
        select v.seen_at into oldest from deputize.observed_values v
        where v.tenant = p_tenant and v.subject = p_subject and v.rule = p_rule
        order by v.seen_at desc offset p_max_values limit 1;
        if found then
            -- Some at a time; others that make room at the same moment are not waited for.
            delete from deputize.observed_values v where v.ctid = any (array(
                select o.ctid from deputize.observed_values o
                where o.tenant = p_tenant and o.subject = p_subject and o.rule = p_rule and o.seen_at <= oldest
                order by o.seen_at limit 100 for update skip locked));
        end if;
    end if;
    return query
    select v.tool, v.authority_rank, v.call_id, v.sealed, v.seen_at from deputize.observed_values v
    where v.tenant = p_tenant and v.subject = p_subject and v.rule = p_rule and v.entity = p_entity
      and (v.tool = p_tool or v.seen_at > at - make_interval(secs => p_within_seconds));
end $$;
COMMENT ON FUNCTION deputize.observe_value(p_tenant text, p_subject text, p_rule text, p_entity bytea, p_tool text, p_authority_rank integer, p_call_id uuid, p_sealed bytea, p_within_seconds double precision, p_max_values integer) IS
    'Store what a tool told a user about a thing, and return it with what other tools told the same user in the '
    'window. Of one user and rule only so many values are kept: the oldest make room.';

CREATE FUNCTION deputize.open_approval(p_tenant text, p_call_id uuid, approval_id uuid, approval_binding bytea, approval_demands bytea, approval_presentation bytea, approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[], approval_tool text, approval_group_key text, approval_groups text[], approval_levels double precision[], approval_expires_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    insert into deputize.human_tasks (tenant, id, kind, call_id, question, due_at)
        values (p_tenant, approval_id, 'approval', p_call_id, '{}', approval_expires_at);
    insert into deputize.approvals (tenant, id, call_id, binding, demands, presentation, preview_digest, previewed_at,
            fresh_seconds, chain, tool, group_key, levels, expires_at, next_at)
        values (p_tenant, approval_id, p_call_id, approval_binding, approval_demands, approval_presentation,
            approval_preview_digest, case when approval_preview_digest is not null then now() end,
            approval_fresh_seconds, approval_chain, approval_tool, approval_group_key, approval_levels,
            approval_expires_at, least(approval_expires_at, now() + make_interval(secs => approval_levels[1])));
    insert into deputize.approval_groups (tenant, grp, id) select p_tenant, g, approval_id from unnest(approval_groups) as g
        on conflict do nothing;
    insert into deputize.notices (tenant, approval_id, grp, kind)
        select distinct p_tenant, approval_id, g, 'asked' from unnest(approval_groups) as g;
end $$;
COMMENT ON FUNCTION deputize.open_approval(p_tenant text, p_call_id uuid, approval_id uuid, approval_binding bytea, approval_demands bytea, approval_presentation bytea, approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[], approval_tool text, approval_group_key text, approval_groups text[], approval_levels double precision[], approval_expires_at timestamp with time zone) IS
    'Open an approval request with its human task, its groups and their notices. Fails if the call has an open one.';

CREATE FUNCTION deputize.plan_expiry(p_tenant text, p_days integer, p_limit integer) RETURNS TABLE(first_index bigint, end_index bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
declare
    -- Never less than a year, whatever a gateway is set to.
    cutoff constant timestamptz := now() - make_interval(days => greatest(p_days, 365));
    cutoff_id constant uuid := (lpad(to_hex((extract(epoch from cutoff) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
begin
    select coalesce(max(x.end_index), 0) into first_index from deputize.log_expiries x where x.tenant = p_tenant;
    -- From the oldest entry on, up to the first that has to stay: one that is younger, not signed yet, or held, or one
    -- that is not what its leaf says: retention must not delete what shows that someone changed the database.
    select coalesce(min(l.leaf_index), first_index + p_limit) into end_index
    from deputize.log_leaves l left join deputize.audit_entries e on e.tenant = l.tenant and e.id = l.entry_id
    where l.tenant = p_tenant and l.leaf_index >= first_index and l.leaf_index < first_index + p_limit
      and (l.entry_id >= cutoff_id or e.id is null or l.hash is distinct from deputize.hash_entry(e.entry) or exists (
          select from deputize.legal_holds h where h.tenant = p_tenant and (
              h.call_id = e.call_id or l.entry_id >= h.first_id and l.entry_id < h.before_id
              or position(convert_to('"' || h.pseudonym || '"', 'UTF8') in e.entry) > 0
              -- An erasure that a hold stopped had ended the pseudonym before: a hold placed later has a new one.
              or exists (select from deputize.erasures x
                         where x.tenant = p_tenant and x.ended_at is null and x.subject = h.subject
                           and position(convert_to('"' || x.pseudonym || '"', 'UTF8') in e.entry) > 0)
              or exists (select from deputize.calls k
                         where k.tenant = p_tenant and k.id = e.call_id and k.caller_user = h.subject))));
    end_index := least(end_index,
        coalesce((select max(l.leaf_index) + 1 from deputize.log_leaves l where l.tenant = p_tenant), 0),
        coalesce((select max(c.size) from deputize.log_checkpoints c where c.tenant = p_tenant), 0));
    if end_index > first_index then
        return next;
    end if;
end $$;
COMMENT ON FUNCTION deputize.plan_expiry(p_tenant text, p_days integer, p_limit integer) IS
    'Find the next entries that may expire: the oldest of a log, without a gap, that are older than so many days, '
    'signed and not held. No row if there are none.';

CREATE FUNCTION deputize.queue_runs(tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], runs_input bytea[], runs_caller bytea[], runs_not_after timestamp with time zone[], runs_priority integer[], runs_release text[], callbacks_request bytea[]) RETURNS SETOF deputize.commit_result
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
COMMENT ON FUNCTION deputize.queue_runs(tenants text[], boot uuid, openings_tenant text[], openings_call_id uuid[], openings_tool text[], openings_version text[], openings_digest text[], openings_mutation_class text[], openings_user text[], openings_agent text[], openings_session text[], openings_fingerprint bytea[], openings_scope bytea[], openings_key bytea[], openings_seconds double precision[], openings_window_seconds integer[], openings_trace text[], openings_entry_id uuid[], openings_entry bytea[], openings_salt bytea[], runs_input bytea[], runs_caller bytea[], runs_not_after timestamp with time zone[], runs_priority integer[], runs_release text[], callbacks_request bytea[]) IS
    'Commit a batch of new runs: their calls as commit_calls does, then the runs themselves, queued.';

CREATE FUNCTION deputize.read_lineage() RETURNS TABLE(id uuid, number integer, began_at timestamp with time zone, went_back_reason text, epoch_sum bigint, is_standby boolean, server text, timeline text)
    LANGUAGE plpgsql STABLE
    AS $$
begin
    is_standby := pg_catalog.pg_is_in_recovery();
    -- Not every provider lets every login read these two, which only describe the server.
    begin
        -- The database too: one server may hold several.
        server := (select c.system_identifier::text from pg_catalog.pg_control_system() as c)
            || '/' || (select d.oid from pg_catalog.pg_database as d where d.datname = current_database());
        timeline := left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8);
    exception when insufficient_privilege or object_not_in_prerequisite_state then
        null;
    end;
    select coalesce(sum(e.registry + e.policy + e.revocation), 0) into epoch_sum from deputize.epochs e;
    select l.id, l.number, l.began_at, l.went_back_reason into id, number, began_at, went_back_reason
    from deputize.lineages l order by l.number desc limit 1;
    return next;
end $$;
COMMENT ON FUNCTION deputize.read_lineage() IS
    'Return the current lineage, the sum of all epochs, and which server this is. The sum never decreases within a '
    'lineage.';

CREATE FUNCTION deputize.record_decisions(p_tenants text[], p_ids text[], p_records bytea[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
    insert into deputize.decisions as d (tenant, id, record)
    select distinct on (u.tenant, u.id) u.tenant, u.id, u.record
    from unnest(p_tenants, p_ids, p_records) as u (tenant, id, record) order by u.tenant, u.id
    on conflict (tenant, id) do update set last_at = now() where d.last_at < now() - interval '1 day'
$$;
COMMENT ON FUNCTION deputize.record_decisions(p_tenants text[], p_ids text[], p_records bytea[]) IS
    'Store decision records, or note that existing ones are still relied on. The writer cannot change a record.';

CREATE FUNCTION deputize.refuse_transition() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    raise exception using errcode = 'check_violation',
        message = format('a call that is %s cannot become %s', old.state, new.state),
        detail = format('call %s of tenant %s', old.id, old.tenant);
end $$;
COMMENT ON FUNCTION deputize.refuse_transition() IS
    'Refuse a change of state that the transitions of a call do not allow (see core/states.py).';

CREATE FUNCTION deputize.release_locks() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    -- No run is woken here: that needs the lock queues, and this is inside another commit.
    update deputize.resource_locks set released_at = now(), is_held = false
        where tenant = new.tenant and call_id = new.id;
    return null;
end $$;
COMMENT ON FUNCTION deputize.release_locks() IS
    'Trigger: release the locks of a call that ended or went back into the queue.';

CREATE FUNCTION deputize.request_approval_again(p_tenant text, p_call_id uuid, p_epoch integer, approval_id uuid, approval_binding bytea, approval_demands bytea, approval_presentation bytea, approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[], approval_tool text, approval_group_key text, approval_groups text[], approval_levels double precision[], approval_expires_at timestamp with time zone, p_entry_id uuid, p_entry bytea) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    perform deputize.acquire_barrier_shared(array[p_tenant]);
    update deputize.calls set state = 'awaiting_approval'
        where tenant = p_tenant and id = p_call_id and owner_epoch = p_epoch and state = 'queued' and needs_approval;
    if not found then
        return false;
    end if;
    update deputize.approvals set state = 'void', next_at = null, closed_at = now()
        where tenant = p_tenant and call_id = p_call_id and state in ('open', 'approved');
    perform deputize.open_approval(
        p_tenant => p_tenant, p_call_id => p_call_id, approval_id => approval_id,
        approval_binding => approval_binding, approval_demands => approval_demands,
        approval_presentation => approval_presentation, approval_preview_digest => approval_preview_digest,
        approval_fresh_seconds => approval_fresh_seconds, approval_chain => approval_chain,
        approval_tool => approval_tool, approval_group_key => approval_group_key, approval_groups => approval_groups,
        approval_levels => approval_levels, approval_expires_at => approval_expires_at);
    insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
        values (p_tenant, p_entry_id, p_call_id, p_entry, null) on conflict do nothing;
    return true;
end $$;
COMMENT ON FUNCTION deputize.request_approval_again(p_tenant text, p_call_id uuid, p_epoch integer, approval_id uuid, approval_binding bytea, approval_demands bytea, approval_presentation bytea, approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[], approval_tool text, approval_group_key text, approval_groups text[], approval_levels double precision[], approval_expires_at timestamp with time zone, p_entry_id uuid, p_entry bytea) IS
    'Replace the approval of a call that would now do something else than what its approvers saw. Compare-and-set '
    'on the epoch.';

CREATE FUNCTION deputize.request_locks(p_tenant text, p_call_id uuid, locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[]) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    -- The needs are those of now: settings may have changed since the run began to wait.
    delete from deputize.resource_locks p where p.tenant = p_tenant and p.call_id = p_call_id and not exists (
        select from unnest(locks_call_id, locks_namespace, locks_resource, locks_scope)
            as n(call_id, namespace, resource, scope)
        where n.call_id = p_call_id and n.namespace = p.namespace and n.resource = p.resource and n.scope = p.scope);
    insert into deputize.resource_locks (tenant, call_id, namespace, resource, scope, capacity, priority)
        select p_tenant, p_call_id, n.namespace, n.resource, n.scope, n.capacity, r.priority
        from unnest(locks_call_id, locks_namespace, locks_resource, locks_scope, locks_capacity)
            as n(call_id, namespace, resource, scope, capacity)
        join deputize.runs r on r.tenant = p_tenant and r.id = p_call_id
        where n.call_id = p_call_id
        on conflict (tenant, call_id, namespace, resource, scope) do update
            set capacity = excluded.capacity, released_at = null,
                requested_at = case when resource_locks.released_at is null then resource_locks.requested_at
                                    else now() end;
    update deputize.calls set uses_resource_locks = true
        where tenant = p_tenant and id = p_call_id and not uses_resource_locks;
    if deputize.must_wait_for_locks(p_tenant, p_call_id) then
        update deputize.resource_locks set woken_at = null
            where tenant = p_tenant and call_id = p_call_id and not is_held;
        return true;
    end if;
    update deputize.resource_locks set is_held = true where tenant = p_tenant and call_id = p_call_id and not is_held;
    return false;
end $$;
COMMENT ON FUNCTION deputize.request_locks(p_tenant text, p_call_id uuid, locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[]) IS
    'Request the locks a run needs, and hold all of them or none. Returns whether the run has to wait.';

CREATE FUNCTION deputize.requeue_run(p_tenant text, p_call_id uuid, p_epoch integer, p_from_states text[]) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
    run_priority integer;
begin
    select r.priority into run_priority from deputize.runs r where r.tenant = p_tenant and r.id = p_call_id;
    if not found then
        return false;
    end if;
    update deputize.calls k set state = 'queued', ended_at = null, error = null
    where k.tenant = p_tenant and k.id = p_call_id and k.owner_epoch = p_epoch and k.state = any(p_from_states)
      and k.cancel_requested_at is null;
    if not found then
        return false;
    end if;
    update deputize.runs r set queued_at = now() where r.tenant = p_tenant and r.id = p_call_id;
    perform deputize.enqueue_run(p_tenant, p_call_id, run_priority);
    return true;
end $$;
COMMENT ON FUNCTION deputize.requeue_run(p_tenant text, p_call_id uuid, p_epoch integer, p_from_states text[]) IS
    'Put a run that was begun back into the queue, to be retried or resumed from an earlier checkpoint. Compare-'
    'and-set on the epoch; a worker that still executes it can store neither its outcome nor a checkpoint any more.';

CREATE FUNCTION deputize.require_erasure_entry() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    -- The tenant's barrier is closed, so that its entry is among the last.
    if not exists (
        select from (select q.entry_id from deputize.log_queue q where q.tenant = new.tenant order by q.number desc limit 100) as q
        join deputize.audit_entries e on e.tenant = new.tenant and e.id = q.entry_id
        where position('"command":"erase_user"'::bytea in e.entry) > 0
          and position('"outcome":"succeeded"'::bytea in e.entry) > 0
          and position(convert_to('"subject":"' || new.pseudonym || '"', 'UTF8') in e.entry) > 0
    ) then
        raise insufficient_privilege using message = 'an erasure needs the audit entry of the act, in its transaction';
    end if;
    return null;
end $$;
COMMENT ON FUNCTION deputize.require_erasure_entry() IS
    'Trigger: refuse to commit an erasure without its audit entry.';

CREATE FUNCTION deputize.reschedule_run(p_tenant text, p_call_id uuid, p_delay_seconds double precision, p_unable boolean) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
    run_priority integer;
begin
    select r.priority into run_priority from deputize.runs r join deputize.calls k on k.tenant = r.tenant and k.id = r.id
    where r.tenant = p_tenant and r.id = p_call_id and k.state in ('queued', 'running', 'unknown');
    if not found then
        return false;
    end if;
    if p_unable then
        update deputize.runs set unable_since = coalesce(unable_since, now()) where tenant = p_tenant and id = p_call_id;
    end if;
    perform deputize.enqueue_run(p_tenant, p_call_id, run_priority, p_delay_seconds, true);
    return true;
end $$;
COMMENT ON FUNCTION deputize.reschedule_run(p_tenant text, p_call_id uuid, p_delay_seconds double precision, p_unable boolean) IS
    'Give a run to the engine once more, later, because this worker cannot execute it now. Remembers since when, if'
    ' the reason is that the worker is unable to.';

CREATE FUNCTION deputize.schedule_delivery() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into deputize.deliveries (tenant, call_id, state, due_at) values (new.tenant, new.id, new.state, now());
    return null;
end $$;
COMMENT ON FUNCTION deputize.schedule_delivery() IS 'Trigger: schedule the callback of a call that ended.';

CREATE FUNCTION deputize.schedule_first_check() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    new.next_at := least(new.next_at, now() + interval '1 minute');
    return new;
end $$;
COMMENT ON FUNCTION deputize.schedule_first_check() IS 'Trigger: check a new approval request within a minute.';

CREATE FUNCTION deputize.schedule_reconciliation() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into deputize.reconciliations as c (tenant, id, due_at)
    values (new.tenant, new.id, greatest(now(), new.deadline_at))
    on conflict (tenant, id) do update set generation = c.generation + 1, due_at = greatest(c.due_at, excluded.due_at);
    return null;
end $$;
COMMENT ON FUNCTION deputize.schedule_reconciliation() IS
    'Trigger: schedule the reconciliation of a call whose outcome became unknown.';

CREATE FUNCTION deputize.scopes_overlap(a text, b text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select case when strpos(a, '*') = 0 and strpos(b, '*') = 0
        then a = b or starts_with(a, b || '/') or starts_with(b, a || '/')
        else starts_with(split_part(a, '*', 1), split_part(b, '*', 1))
             or starts_with(split_part(b, '*', 1), split_part(a, '*', 1)) end
$$;
COMMENT ON FUNCTION deputize.scopes_overlap(a text, b text) IS
    'Whether two scopes overlap. A scope covers what lies below it (a/b covers a/b/c). A pattern is compared by its'
    ' prefix alone: a wait too many is better than one too few.';

CREATE FUNCTION deputize.search_audit(p_labels text[], p_needles jsonb, p_first uuid, p_before uuid, p_limit integer, p_milliseconds integer) RETURNS TABLE(id uuid, entry bytea)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    SET max_parallel_workers_per_gather TO '0'
    AS $_$
declare
    tenant_name constant text := current_setting('deputize.tenant', true);
    seed constant bigint := hashtextextended(tenant_name, 0);
    ends_at constant timestamptz := clock_timestamp() + make_interval(secs => p_milliseconds / 1000.0);
    walk constant integer := 1000;
    needles constant text := coalesce((
        select string_agg(' and (' || (
            select string_agg(format('position(%L::bytea in s.entry) > 0', convert_to(needle, 'UTF8')), ' or ')
            from jsonb_array_elements_text(alternatives) as needle) || ')', '')
        from jsonb_array_elements(p_needles) as alternatives), '');
    before_id uuid := p_before;
    oldest_id uuid;
    last_id uuid;
    day_id uuid;
    oldest_period bigint;
    low bigint;
    high bigint;
    width bigint := 1;
    found_count integer := 0;
    more_count integer;
    day_table text;
    conditions text;
begin
    select a.id into oldest_id from deputize.audit_entries a
    where a.tenant = tenant_name and a.id >= p_first and a.id < p_before order by a.id limit 1;
    if oldest_id is null then
        return;
    end if;
    -- What is frequent is found by reading backwards; so is what no index has, for as long as there is time.
    loop
        select a.id into last_id from deputize.audit_entries a
        where a.tenant = tenant_name and a.id >= oldest_id and a.id < before_id order by a.id desc offset walk - 1 limit 1;
        return query execute 'select s.id, s.entry from (select a.id, a.entry from deputize.audit_entries a'
            ' where a.tenant = $1 and a.id >= $2 and a.id < $3 order by a.id desc limit $4) as s where true'
            || needles || ' limit $5'
            using tenant_name, oldest_id, before_id, walk, p_limit - found_count;
        get diagnostics more_count = row_count;
        found_count := found_count + more_count;
        if found_count >= p_limit or last_id is null then
            return;
        end if;
        before_id := last_id;
        exit when cardinality(p_labels) > 0;
        if clock_timestamp() > ends_at then
            return query select before_id, null::bytea;
            return;
        end if;
    end loop;
    -- What is rare is found by the index, day by day, in windows that grow while they hold little.
    oldest_period := deputize.get_audit_period(oldest_id);
    for day_table, day_id, low, high in
        select child.relname, deputize.first_uuid_of_day(day), greatest(oldest_period, deputize.get_audit_period(deputize.first_uuid_of_day(day))),
            deputize.get_audit_period(deputize.first_uuid_of_day(day + 1))
        from pg_inherits join pg_class child on child.oid = inhrelid
        cross join lateral (select case when child.relname ~ '_[0-9]{8}$' then to_date(right(child.relname, 8), 'YYYYMMDD') end as day) as days
        where inhparent = 'deputize.audit_entries'::regclass
          and deputize.first_uuid_of_day(day) < before_id and deputize.first_uuid_of_day(day + 1) > oldest_id
        order by day desc
    loop
        high := least(high, deputize.get_audit_period(before_id));
        while high >= low loop
            -- The first period of a day began the day before, in another table.
            last_id := greatest(day_id,
                (lpad(to_hex(greatest(high - width + 1, low) << 4), 8, '0') || repeat('0', 24))::uuid);
            select string_agg(format(' and deputize.list_audit_terms(a.tenant, a.id, a.entry) && %L::bigint[]', keys.keys), '')
            into conditions from (
                select array_agg(period << 35 | (hashtextextended(label, seed) & 34359738367)) as keys
                from unnest(p_labels) as label, generate_series(greatest(high - width + 1, low), high) as period
                group by label) as keys;
            return query execute format('select s.id, s.entry from (select a.tenant, a.id, a.entry from deputize.%I a'
                ' where true%s offset 0) as s where s.tenant = $1 and s.id >= $2 and s.id < $3%s'
                ' order by s.id desc limit $4', day_table, conditions, needles)
                using tenant_name, oldest_id, before_id, p_limit - found_count;
            get diagnostics more_count = row_count;
            found_count := found_count + more_count;
            if found_count >= p_limit then
                return;
            end if;
            before_id := least(before_id, last_id);
            if clock_timestamp() > ends_at then
                return query select before_id, null::bytea;
                return;
            end if;
            high := high - width;
            width := least(width * 2, 128, case when more_count = 0 then 128
                else greatest(1, width * (p_limit - found_count) / more_count) end);
        end loop;
    end loop;
end $_$;
COMMENT ON FUNCTION deputize.search_audit(p_labels text[], p_needles jsonb, p_first uuid, p_before uuid, p_limit integer, p_milliseconds integer) IS
    'Search the audit entries of the tenant that the reader names, newest first, from one id to before another. '
    'Entries are those that have the labels and contain one text of each of the needles. If time is over, the last '
    'row has no entry: its id says how far the search came.';

CREATE FUNCTION deputize.select_epochs(tenants text[]) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    AS $$
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
COMMENT ON FUNCTION deputize.select_epochs(tenants text[]) IS
    'Return the epochs a batch commits under. Fails where a tenant does not exist: checked once per batch, not once'
    ' per row.';

CREATE FUNCTION deputize.settle_unknown_call(closing_tenant text, closing_call_id uuid, closing_epoch integer, closing_state text, closing_error text, closing_release boolean, closing_ciphertext bytea, closing_entry_id uuid, closing_entry bytea, closing_salt bytea) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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
    delete from deputize.reconciliations where tenant = closing_tenant and id = closing_call_id;
    return true;
end $$;
COMMENT ON FUNCTION deputize.settle_unknown_call(closing_tenant text, closing_call_id uuid, closing_epoch integer, closing_state text, closing_error text, closing_release boolean, closing_ciphertext bytea, closing_entry_id uuid, closing_entry bytea, closing_salt bytea) IS
    'Store the established outcome of a call recorded as unknown. Compare-and-set on the epoch: a call that was '
    'taken over or settled meanwhile is left alone, and false is returned.';

CREATE FUNCTION deputize.submit_for_approval(boot uuid, opening_tenant text, opening_call_id uuid, opening_tool text, opening_version text, opening_digest text, opening_mutation_class text, opening_user text, opening_agent text, opening_session text, opening_fingerprint bytea, opening_scope bytea, opening_key bytea, opening_seconds double precision, opening_window_seconds integer, opening_trace text, opening_entry_id uuid, opening_entry bytea, opening_salt bytea, run_input bytea, run_caller bytea, run_not_after timestamp with time zone, run_priority integer, run_release text, callback_request bytea, approval_id uuid, approval_binding bytea, approval_demands bytea, approval_presentation bytea, approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[], approval_tool text, approval_group_key text, approval_groups text[], approval_levels double precision[], approval_expires_at timestamp with time zone) RETURNS SETOF deputize.commit_result
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
        openings_entry => array[opening_entry], openings_salt => array[opening_salt])
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
COMMENT ON FUNCTION deputize.submit_for_approval(boot uuid, opening_tenant text, opening_call_id uuid, opening_tool text, opening_version text, opening_digest text, opening_mutation_class text, opening_user text, opening_agent text, opening_session text, opening_fingerprint bytea, opening_scope bytea, opening_key bytea, opening_seconds double precision, opening_window_seconds integer, opening_trace text, opening_entry_id uuid, opening_entry bytea, opening_salt bytea, run_input bytea, run_caller bytea, run_not_after timestamp with time zone, run_priority integer, run_release text, callback_request bytea, approval_id uuid, approval_binding bytea, approval_demands bytea, approval_presentation bytea, approval_preview_digest bytea, approval_fresh_seconds integer, approval_chain text[], approval_tool text, approval_group_key text, approval_groups text[], approval_levels double precision[], approval_expires_at timestamp with time zone) IS
    'Commit the claim, the call, the run and the approval request of a call at once. The run is not given to the '
    'engine.';

CREATE FUNCTION deputize.take_over_call(p_tenant text, p_call_id uuid, p_epoch integer, p_boot uuid, p_seconds double precision, p_margin_seconds double precision, p_entry_id uuid, p_entry bytea, p_salt bytea) RETURNS SETOF deputize.commit_result
    LANGUAGE plpgsql
    AS $$
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
COMMENT ON FUNCTION deputize.take_over_call(p_tenant text, p_call_id uuid, p_epoch integer, p_boot uuid, p_seconds double precision, p_margin_seconds double precision, p_entry_id uuid, p_entry bytea, p_salt bytea) IS
    'Take over a call whose owner is gone or whose outcome is unknown, when its caller retries it. Compare-and-set '
    'on the epoch the caller saw; the claim stays with the call, and the upstream gets the same key again.';

CREATE FUNCTION deputize.undo_run_begin(p_tenant text, p_call_id uuid, p_epoch integer, p_untouched boolean, p_delay_seconds double precision) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    update deputize.calls set state = case when p_untouched then 'queued' else 'unknown' end
    where tenant = p_tenant and id = p_call_id and owner_epoch = p_epoch and state = 'running';
    if not found then
        return false;
    end if;
    update deputize.runs set untouched_epoch = case when p_untouched then p_epoch else untouched_epoch end
    where tenant = p_tenant and id = p_call_id;
    return deputize.reschedule_run(p_tenant, p_call_id, p_delay_seconds, false);
end $$;
COMMENT ON FUNCTION deputize.undo_run_begin(p_tenant text, p_call_id uuid, p_epoch integer, p_untouched boolean, p_delay_seconds double precision) IS
    'Put a run back into the queue that was begun but whose tool was not started. One that was taken over becomes '
    'unknown instead: only this owner is known to have done nothing.';

CREATE FUNCTION deputize.void_approved_call(p_tenant text, p_call_id uuid, p_queued_at timestamp with time zone, p_reason text, p_state text, p_error text, p_ciphertext bytea, p_entry_id uuid, p_entry bytea) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    perform deputize.acquire_barrier_shared(array[p_tenant]);
    perform from deputize.calls k where k.tenant = p_tenant and k.id = p_call_id for update;
    if not exists (select from deputize.calls k join deputize.runs r on r.tenant = k.tenant and r.id = k.id
        where k.tenant = p_tenant and k.id = p_call_id and k.state = 'queued' and r.queued_at = p_queued_at) then
        return false;
    end if;
    perform deputize.end_unstarted_calls(
        tenants => array[p_tenant], p_approval_state => 'void', p_resolved_by => '', p_reason => p_reason,
        ends_tenant => array[p_tenant], ends_call_id => array[p_call_id], ends_epoch => array[0],
        ends_state => array[p_state], ends_error => array[p_error], ends_ciphertext => array[p_ciphertext],
        ends_entry_id => array[p_entry_id], ends_entry => array[p_entry]);
    return true;
end $$;
COMMENT ON FUNCTION deputize.void_approved_call(p_tenant text, p_call_id uuid, p_queued_at timestamp with time zone, p_reason text, p_state text, p_error text, p_ciphertext bytea, p_entry_id uuid, p_entry bytea) IS
    'End an approved call that must not begin any more, for the worker that saw it queued at this moment. One whose'
    ' approval was requested again since is left alone.';

CREATE FUNCTION deputize.wake_next_runs(p_namespace text, p_resource text, p_scope text) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    waits deputize.resource_locks;
    room integer;
begin
    for waits in
        select * from deputize.resource_locks o
        where not o.is_held and o.released_at is null and o.namespace = p_namespace and o.resource = p_resource
          and o.scope_prefix = split_part(p_scope, '*', 1) and o.scope = p_scope
        order by o.priority, o.requested_at, o.call_id
    loop
        perform deputize.wake_run(waits.tenant, waits.call_id, waits.priority);
        room := coalesce(room, waits.capacity) - 1;
        exit when room <= 0;
    end loop;
    for waits in
        select * from deputize.find_overlapping_locks(p_namespace, p_resource, p_scope) o
        where not o.is_held and o.scope <> p_scope
        order by o.priority, o.requested_at, o.call_id limit 32
    loop
        perform deputize.wake_run(waits.tenant, waits.call_id, waits.priority);
    end loop;
end $$;
COMMENT ON FUNCTION deputize.wake_next_runs(p_namespace text, p_resource text, p_scope text) IS
    'Wake as many runs as may hold a released lock, and those that wait for a scope overlapping it. Each of them '
    'checks again whether it has to wait.';

CREATE FUNCTION deputize.wake_run(p_tenant text, p_call_id uuid, p_priority integer) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    update deputize.resource_locks set woken_at = now()
    where tenant = p_tenant and call_id = p_call_id and not is_held and released_at is null
      and (woken_at is null or woken_at < now() - interval '5 minutes');
    if not found then
        return false;
    end if;
    perform deputize.enqueue_run(p_tenant, p_call_id, p_priority, 0, true);
    return true;
end $$;
COMMENT ON FUNCTION deputize.wake_run(p_tenant text, p_call_id uuid, p_priority integer) IS
    'Make a waiting run try again: the engine gets it once more, ahead of runs that never waited.';

CREATE FUNCTION deputize.wake_runs_behind(p_call_id uuid) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    released deputize.resource_locks;
begin
    for released in
        delete from deputize.resource_locks where call_id = p_call_id and released_at is not null returning *
    loop
        perform deputize.wake_next_runs(released.namespace, released.resource, released.scope);
    end loop;
end $$;
COMMENT ON FUNCTION deputize.wake_runs_behind(p_call_id uuid) IS
    'Delete the released locks of a call and wake the runs behind them. The caller has acquired their queues.';

CREATE FUNCTION deputize.write_notifications(p_tenant text, p_group text, p_receivers bytea[], p_max_per_window integer, p_window_seconds double precision) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
    current_window deputize.notification_windows;
    waiting integer;
    written integer;
begin
    insert into deputize.notification_windows (tenant, grp) values (p_tenant, p_group) on conflict do nothing;
    select * into current_window from deputize.notification_windows w
        where w.tenant = p_tenant and w.grp = p_group for update skip locked;
    if not found then
        -- Another process composes for this group.
        return 0;
    end if;
    if current_window.window_ends <= now() then
        current_window.sent_count := 0;
        current_window.window_ends := now() + make_interval(secs => p_window_seconds);
    end if;
    -- A broken glass is told of by itself and at once.
    with urgent as (
        delete from deputize.notices n
        where n.tenant = p_tenant and n.grp = p_group and n.due_at <= now() and n.kind = 'broken-glass'
        returning n.approval_id, n.kind
    )
    insert into deputize.notifications (tenant, grp, receiver, approval_id, kind)
        select p_tenant, p_group, r, urgent.approval_id, urgent.kind from urgent cross join unnest(p_receivers) as r;
    get diagnostics written = row_count;
    select count(*) into waiting from (
        select from deputize.notices n where n.tenant = p_tenant and n.grp = p_group and n.due_at <= now()
        limit p_max_per_window + 1) as few;
    if waiting = 0 or current_window.sent_count > p_max_per_window then
        return written;
    elsif current_window.sent_count + waiting <= p_max_per_window then
        -- Only the newest notice about each approval request.
        with deleted_notices as (
            delete from deputize.notices n
            where n.tenant = p_tenant and n.grp = p_group and n.due_at <= now()
            returning n.approval_id, n.kind, n.created_at
        ), newest as (
            select distinct on (approval_id) approval_id, kind from deleted_notices order by approval_id, created_at desc
        )
        insert into deputize.notifications (tenant, grp, receiver, approval_id, kind)
            select p_tenant, p_group, r, newest.approval_id, newest.kind from newest cross join unnest(p_receivers) as r;
    else
        delete from deputize.notices n where n.tenant = p_tenant and n.grp = p_group and n.due_at <= now();
        insert into deputize.notifications (tenant, grp, receiver, kind)
            select p_tenant, p_group, r, 'digest' from unnest(p_receivers) as r;
        waiting := p_max_per_window + 1;
    end if;
    update deputize.notification_windows w
        set window_ends = current_window.window_ends,
            sent_count = least(current_window.sent_count + waiting, p_max_per_window + 1)
        where w.tenant = p_tenant and w.grp = p_group;
    return written + waiting;
end $$;
COMMENT ON FUNCTION deputize.write_notifications(p_tenant text, p_group text, p_receivers bytea[], p_max_per_window integer, p_window_seconds double precision) IS
    'Make notifications of a group''s due notices: one for each receiver and notice while they are few, otherwise '
    'one digest, and no more before the window ends.';
