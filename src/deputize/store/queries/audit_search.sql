-- Search the audit: operations/audit/. The functions read only the tenant that the transaction names.

-- name: set_time_limit
-- One statement of a search ends after this, whatever it does.
select set_config('statement_timeout', $1, true);

-- name: search_entries
-- Newest first. A last row without an entry says how far the search came in its time.
select id, entry from deputize.search_audit(p_labels => $1, p_needles => $2::text::jsonb, p_first => $3, p_before => $4,
    p_limit => $5, p_milliseconds => $6);

-- name: find_newest_entries
-- The newest entry of each of several searches, which their numbers tell.
select w.number, s.id, s.entry
from jsonb_to_recordset($1::text::jsonb) as w(number integer, labels text[], needles jsonb)
cross join lateral deputize.search_audit(p_labels => w.labels, p_needles => w.needles, p_first => $2, p_before => $3,
    p_limit => 1, p_milliseconds => $4) as s
where s.entry is not null;

-- name: list_entries_before
-- A page of all entries, newest first, for exports without a filter.
select id, entry from deputize.audit_entries where tenant = $1 and id >= $2 and id < $3 order by id desc limit $4;

-- name: list_newest_ids
-- Since an id, newest first.
select id from deputize.audit_entries where tenant = $1 and id >= $2 order by id desc limit $3;

-- name: load_entries
-- Oldest first. The first id is in the statement, so that only the partitions of its day and later are read.
select id, entry from deputize.audit_entries where tenant = $1 and id >= $2 and id = any($3::uuid[]) order by id;

-- name: load_entry
select id, entry from deputize.audit_entries where tenant = $1 and id = $2;

-- name: name_pseudonyms
select pseudonym, subject from deputize.name_pseudonyms(p_pseudonyms => $1);

-- name: merge_terms
select deputize.merge_audit_terms();

-- name: list_agents_of_calls
-- Who acted in these calls, and by which delegation. Reads have no row.
select id, caller_agent from deputize.calls where tenant = $1 and id = any($2::uuid[]);

-- name: list_entries_of_calls_from
-- Those between two ids. Between two unknown ids a plan for any of them expects few entries, and would read them all:
-- it knows the first, which says what days to look at, and not the last.
select s.entry from (
    select a.id, a.entry from deputize.audit_entries a where a.tenant = $1 and a.call_id = any($2::uuid[]) and a.id >= $3 offset 0
) as s where s.id < $4;
