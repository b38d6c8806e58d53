-- name: held_call
-- What holds a key: enough to replay it, wait for it, or take it over. Read from the primary.
select k.state, k.fingerprint, k.error, k.owner_epoch, k.trace, s.box,
       exists (select from deputize.leases l
               where l.boot = k.owner and l.expires_at + make_interval(secs => $3) > now()) as owner_alive
from deputize.calls k
left join deputize.sealed s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
where k.tenant = $1 and k.id = $2;

-- name: retake_call
select * from deputize.retake_call($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: show_call
-- One call for who made it; the sealed outcome is opened by the caller of this.
select k.id, k.state, k.tool, k.version, k.tool_digest, k.mutation_class, k.caller_user, k.caller_agent, k.session,
       k.created_at, k.ended_at, k.deadline_at, k.cancel_asked, k.error, k.trace, s.box
from deputize.calls k
left join deputize.sealed s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
where k.tenant = $1 and k.id = $2;

-- name: list_calls
-- Newest first, of one user or of all, and of one agent or of all, below a cursor.
select k.id, k.state, k.tool, k.version, k.mutation_class, k.caller_user, k.caller_agent, k.session, k.created_at,
       k.ended_at, k.error, k.trace
from deputize.calls k
where k.tenant = $1 and ($2::text is null or k.caller_user = $2) and ($3::uuid is null or k.id < $3)
  and ($5::text is null or k.caller_agent = $5)
order by k.id desc
limit $4;

-- name: entries_of_call
-- A read leaves no call row; its entry says what became of it.
select a.id, a.entry from deputize.audit_entries a where a.tenant = $1 and a.call_id = $2 order by a.id;

-- name: ask_to_cancel
update deputize.calls set cancel_asked = coalesce(cancel_asked, now())
where tenant = $1 and id = $2 and state = 'running'
returning id;
