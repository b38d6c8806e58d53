-- What people and time do to approval requests: approve, deny, escalate, remind, expire.

create function deputize.is_approved(p_tenant text, p_call_id uuid, p_epoch integer) returns boolean
    language sql volatile as $$
    select exists (select from deputize.approvals a where a.tenant = p_tenant and a.call_id = p_call_id
        and (a.state = 'approved' and a.expires_at > clock_timestamp() or a.state = 'used' and p_epoch > 0))
$$;
comment on function deputize.is_approved is
    'Whether a call that needs approval may begin: with an approval that has not expired by this moment (not by when the '
    'transaction began), or, taken over from an owner that had begun it, with the one that owner used.';

create function deputize.approve_call(p_tenant text, p_approval_id uuid, p_resolved_by text, p_reason text)
    returns boolean language plpgsql as $$
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
        raise exception 'a ticket is open for a call that does not wait for it';
    end if;
    update deputize.tickets set state = 'resolved', resolved_at = now(), resolved_by = p_resolved_by,
            resolution = 'approved', reason = p_reason
        where tenant = p_tenant and id = p_approval_id and state = 'open';
    delete from deputize.approval_groups where tenant = p_tenant and id = p_approval_id;
    update deputize.runs set queued_at = now() where tenant = p_tenant and id = approved_call
        returning priority into run_priority;
    perform deputize.enqueue_run(p_tenant, approved_call, run_priority, 0, true);
    return true;
end $$;
comment on function deputize.approve_call is
    'Queue a call that everybody who is needed has approved. Returns false if its approval request is closed or expired.';

create function deputize.end_unstarted_calls(
    tenants text[], p_approval_state text, p_resolved_by text, p_reason text,
    ends_tenant text[], ends_call_id uuid[], ends_epoch integer[], ends_state text[], ends_error text[], ends_ciphertext bytea[],
    ends_entry_id uuid[], ends_entry bytea[]
) returns setof uuid language plpgsql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
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
    ), resolved_tickets as (
        update deputize.tickets t set state = case when p_approval_state = 'expired' then 'expired' else 'resolved' end,
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
comment on function deputize.end_unstarted_calls is
    'End calls that wait for approval, or were approved and not begun: their approvals become denied, expired or void. '
    'Compare-and-set on the epoch; what was begun, has ended or, by the database''s clock, has not expired is left alone. '
    'Returns the calls it ended.';

create function deputize.void_approved_call(
    p_tenant text, p_call_id uuid, p_queued_at timestamptz, p_reason text, p_state text, p_error text, p_ciphertext bytea,
    p_entry_id uuid, p_entry bytea
) returns boolean language plpgsql as $$
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
comment on function deputize.void_approved_call is
    'End an approved call that must not begin any more, for the worker that saw it queued at this moment. One whose approval '
    'was requested again since is left alone.';

-- Any other end of such a call, like a cancellation by its caller, ends its approval request too. Most calls end right after
-- their request and cost one lookup here.
create function deputize.cancel_approvals() returns trigger language plpgsql as $$
begin
    if not exists (select from deputize.approvals a
        where a.tenant = new.tenant and a.call_id = new.id and a.state in ('open', 'approved')) then
        return null;
    end if;
    with closed as (
        update deputize.approvals set state = 'canceled', next_at = null, closed_at = now()
        where tenant = new.tenant and call_id = new.id and state in ('open', 'approved') returning tenant, id
    ), resolved_tickets as (
        update deputize.tickets t set state = 'resolved', resolved_at = now(), resolved_by = '', resolution = 'canceled',
            reason = ''
        from closed where t.tenant = closed.tenant and t.id = closed.id and t.state = 'open'
    )
    delete from deputize.approval_groups g using closed where g.tenant = closed.tenant and g.id = closed.id;
    return null;
end $$;
comment on function deputize.cancel_approvals is 'Trigger: cancel the approval requests of a call that ended before it began.';
create trigger calls_cancel_approvals after update of state on deputize.calls for each row
    when (new.needs_approval and old.state in ('awaiting_approval', 'queued') and new.ended_at is not null)
    execute function deputize.cancel_approvals();

create function deputize.lock_due_approvals(p_limit integer) returns table (
    tenant text, id uuid, call_id uuid, tool text, level integer, levels float8[], demands bytea, expires_at timestamptz,
    is_expired boolean, due_level integer, age float8, owner_epoch integer, trace text, session text
) language sql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
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
comment on function deputize.lock_due_approvals is
    'Lock and return approval requests that something is due of, skipping those another process has locked. Their calls '
    'are not locked: anyone who ends a call locks the call first and its request after it.';

create function deputize.advance_approvals(
    approvals_tenant text[], approvals_id uuid[], approvals_level integer[],
    groups_tenant text[], groups_id uuid[], groups_name text[],
    p_reminder_seconds float8, p_max_reminders integer, p_pause_seconds float8
) returns void language sql
    set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
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
        insert into deputize.notices (tenant, ticket, grp, kind) select tenant, id, grp, 'escalated' from added_groups
    ), reminder_notices as (
        -- For the groups that were there before; a group that was just added needs no reminder.
        insert into deputize.notices (tenant, ticket, grp, kind)
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
comment on function deputize.advance_approvals is
    'Advance approval requests that the caller has locked: add the groups of the level they reached, write notices for '
    'them and reminders for the others, and set when each is due next.';
