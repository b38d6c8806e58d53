-- Tickets, which people decide, and unknown outcomes as work: reconciled until they are settled.

create table deputize.tickets (
    tenant      text not null,
    id          uuid not null,
    kind        text not null check (kind in ('reconcile', 'approval')),
    call_id     uuid not null,
    state       text not null default 'open' check (state in ('open', 'resolved', 'expired')),
    -- Redacted facts for anyone who decides, as JSON.
    question    bytea not null,
    due_at      timestamptz,
    opened_at   timestamptz not null default now(),
    resolved_at timestamptz,
    resolved_by text,
    resolution  text,
    reason      text,
    primary key (tenant, id),
    check ((state = 'open') = (resolved_at is null))
);
-- At most one open ticket of a kind for each call.
create unique index tickets_about on deputize.tickets (tenant, call_id, kind) where state = 'open';
create index tickets_open on deputize.tickets (tenant, id) where state = 'open';
-- Reconciliation tasks are few among however many approval requests.
create index tickets_reconcile on deputize.tickets (tenant, id) where kind = 'reconcile';
comment on table deputize.tickets is
    'Reconciliation tasks (kind reconcile) and approval requests (kind approval; more in approvals under the same id).';
select deputize.secure_table('tickets', 'select, insert, update');

create table deputize.reconciliations (
    tenant text not null,
    id     uuid not null,
    tries  integer not null default 0,
    due_at timestamptz not null,
    -- Rises when the same call becomes unknown again: who settles an earlier generation must not delete a later one.
    generation integer not null default 0,
    primary key (tenant, id)
);
create index reconciliations_due on deputize.reconciliations (due_at);
comment on table deputize.reconciliations is
    'One row for each call whose outcome is unknown: how often it was checked, and when to check again.';
select deputize.secure_table('reconciliations', 'select, insert, update, delete');

-- The commit that makes a call's outcome unknown commits the work of finding out too, due when the call's own time is over:
-- until then its tool may still act. Any other call costs one comparison.
create function deputize.schedule_reconciliation() returns trigger language plpgsql as $$
begin
    insert into deputize.reconciliations as c (tenant, id, due_at)
    values (new.tenant, new.id, greatest(now(), new.deadline_at))
    on conflict (tenant, id) do update set generation = c.generation + 1, due_at = greatest(c.due_at, excluded.due_at);
    return null;
end $$;
comment on function deputize.schedule_reconciliation is
    'Trigger: schedule the reconciliation of a call whose outcome became unknown.';
create trigger calls_schedule_reconciliation after update of state on deputize.calls for each row
    when (new.state = 'unknown' and old.state <> 'unknown')
    execute function deputize.schedule_reconciliation();

create function deputize.settle_unknown_call(
    closing_tenant text, closing_call_id uuid, closing_epoch integer, closing_state text, closing_error text,
    closing_release boolean, closing_ciphertext bytea, closing_entry_id uuid, closing_entry bytea, closing_salt bytea
) returns boolean language plpgsql as $$
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
comment on function deputize.settle_unknown_call is
    'Store the established outcome of a call recorded as unknown. Compare-and-set on the epoch: a call that was taken over '
    'or settled meanwhile is left alone, and false is returned.';
