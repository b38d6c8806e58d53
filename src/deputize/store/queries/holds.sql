-- Legal holds and the retention of audit entries: operations/admin/legal_holds.py, operations/background/entry_retention.py.

-- name: lock_to_place
-- Waits until everything that is being deleted is, and for the batches of erasures.
select deputize.lock_legal_holds(true);

-- name: limit_wait
set local lock_timeout = '3s';

-- name: lock_to_delete
select deputize.lock_legal_holds(false);

-- name: count_holds
select count(*) from deputize.legal_holds where tenant = $1;

-- name: insert_hold
insert into deputize.legal_holds
    (tenant, id, kind, subject, pseudonym, call_id, from_at, to_at, first_id, before_id, reason, placed_by)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: delete_hold
delete from deputize.legal_holds where tenant = $1 and id = $2 returning kind;

-- name: has_call
select exists (select from deputize.calls where tenant = $1 and id = $2)
    or exists (select from deputize.audit_entries where tenant = $1 and call_id = $2);

-- name: list_holds
select id, kind, subject, call_id, from_at, to_at, reason, placed_by, placed_at
from deputize.legal_holds where tenant = $1 order by placed_at desc, id desc;

-- name: find_blocking_hold
select h.id, h.kind, h.reason, h.placed_by, h.placed_at from deputize.legal_holds h
where h.tenant = $1 and h.id = deputize.find_blocking_hold(
    p_tenant => $1, p_subject => $2, p_names => $3, p_pseudonym => $4);

-- name: list_tenants
select tenant from deputize.tenants order by tenant;

-- name: plan_expiry
select first_index, end_index from deputize.plan_expiry(p_tenant => $1, p_days => $2, p_limit => $3);

-- name: expire_entries
select deputize.expire_entries(
    p_tenant => $1, p_days => $2, p_first_index => $3, p_end_index => $4, p_entry_id => $5, p_entry => $6);

-- name: load_expired_size
select coalesce(max(end_index), 0) from deputize.log_expiries where tenant = $1;
