-- Decision records of past calls: operations/admin/policy/backtests.py and explain.py.

-- name: find_first_entry_since
select id from deputize.audit_entries where tenant = $1 and id > $2 and id <= $3 order by id limit 1;

-- name: list_entries_between
-- One page of entries after one id and up to another. Ids lead with time, so only the partitions of those days are
-- read.
select id, call_id, entry from deputize.audit_entries where tenant = $1 and id > $2 and id <= $3 order by id limit $4;

-- name: load_decision_records
select id, record from deputize.decisions where tenant = $1 and id = any($2);

-- name: load_policies_by_digest
-- The newest set with this digest, active or not.
select changed_epoch, digest, files, facts, put_by, put_at
from deputize.policies
where tenant = $1 and digest = $2
order by changed_epoch desc
limit 1;
