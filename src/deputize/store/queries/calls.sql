-- name: held_call
-- What holds a key: enough to replay it, wait for it, or take it over. Read from the primary.
select k.state, k.fingerprint, k.error, k.owner_epoch, k.trace, k.cancel_asked is not null as cancel_asked, s.box,
       exists (select from deputize.leases l
               where l.boot = k.owner and l.expires_at + make_interval(secs => $3) > now()) as owner_alive
from deputize.calls k
left join deputize.sealed s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
where k.tenant = $1 and k.id = $2;

-- name: retake_call
select * from deputize.retake_call($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: show_call
-- One call for who made it; the sealed outcome is opened by the caller of this.
select k.tenant, k.id, k.state, k.tool, k.version, k.tool_digest, k.mutation_class, k.caller_user, k.caller_agent,
       k.session, k.created_at, k.ended_at, k.deadline_at, k.cancel_asked, k.error, k.trace, k.owner_epoch, k.nothing_happened,
       extract(epoch from now() - k.created_at)::float8 as age, k.asked, s.box,
       exists (select from deputize.runs r where r.tenant = k.tenant and r.id = k.id) as is_run
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

-- name: give_up_questions
-- A call that was asked back has ended; this says that nobody will answer.
update deputize.calls set cancel_asked = coalesce(cancel_asked, now())
where tenant = $1 and id = $2 and state = 'needs_input';

-- name: ask_to_cancel
update deputize.calls set cancel_asked = coalesce(cancel_asked, now())
where tenant = $1 and id = $2 and state in ('queued', 'running')
returning id;

-- name: cancel_queued
-- Of a call that nobody ever began: the state it waited in. Its key stays with it: that it was canceled is what the same key
-- is told.
with waits as (
    select k.tenant, k.id, k.state from deputize.calls k
    where k.tenant = $1 and k.id = $2 and k.owner_epoch = 0 and k.state in ('queued', 'awaiting_approval')
    for update
)
update deputize.calls k
set state = 'canceled', cancel_asked = now(), ended_at = now(), error = 'canceled', nothing_happened = true,
    window_ends = now() + make_interval(secs => k.window_seconds)
from waits where k.tenant = waits.tenant and k.id = waits.id
returning waits.state;

-- name: keep_outcome
insert into deputize.sealed (tenant, id, kind, box) values ($1, $2, 'outcome', $3)
on conflict (tenant, id, kind) do update set box = excluded.box;

-- name: newest_progress
-- The newest word on how far it is, and the newest part of the result.
(select seq, told, partial from deputize.progress where tenant = $1 and id = $2 and not partial order by seq desc limit 1)
union all
(select seq, told, partial from deputize.progress where tenant = $1 and id = $2 and partial order by seq desc limit 1);

-- name: progress_since
select seq, told, partial from deputize.progress where tenant = $1 and id = $2 and seq > $3 order by seq limit 200;

-- name: runs_ahead
-- About how many of the tenant's queued runs come first; no more than a thousand are looked at.
select count(*) from (
    select k.id from deputize.calls k where k.tenant = $1 and k.state = 'queued' order by k.id limit 1000
) as waiting
join deputize.runs r on r.tenant = $1 and r.id = waiting.id
join deputize.runs own on own.tenant = $1 and own.id = $2
where (r.priority, r.queued_at) < (own.priority, own.queued_at);

-- name: call_to_retry
-- What a caller may ask to be tried again: only a run was written down with its input.
select k.id, k.state, k.tool, k.version, k.caller_user, k.caller_agent, k.session, k.mutation_class, k.nothing_happened,
       s.box as input
from deputize.calls k
left join deputize.sealed s on s.tenant = k.tenant and s.id = k.id and s.kind = 'input'
where k.tenant = $1 and k.id = $2;

-- name: approval_of_call
-- What people were asked about a call last, who is asked now, and why they said no, if they did.
select a.id, a.state, a.demands, a.level, a.levels, a.opened_at, a.expires_at,
       array(select g.grp from deputize.approval_groups g where g.tenant = a.tenant and g.id = a.id order by g.grp) as groups,
       case when a.state = 'denied' then t.reason end as reason
from deputize.approvals a
join deputize.tickets t on t.tenant = a.tenant and t.id = a.id
where a.tenant = $1 and a.call_id = $2
order by a.opened_at desc, a.id desc
limit 1;
