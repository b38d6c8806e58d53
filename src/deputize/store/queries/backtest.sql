-- Recorded decisions, read back: lifecycle/backtest.py and lifecycle/explaining.py.

-- name: first_entry_since
select id from deputize.audit_entries where tenant = $1 and id > $2 and id <= $3 order by id limit 1;

-- name: entries_between
-- A page of entries after one id, up to another. Ids lead with time, so only the days asked for are looked at.
select id, call_id, entry from deputize.audit_entries where tenant = $1 and id > $2 and id <= $3 order by id limit $4;

-- name: decision_records
select id, record from deputize.decisions where tenant = $1 and id = any($2);

-- name: policies_by_digest
-- The newest of the sets that were put under this digest, whether or not it is in force.
select changed_epoch, digest, files, facts, put_by, put_at
from deputize.policies
where tenant = $1 and digest = $2
order by changed_epoch desc
limit 1;
