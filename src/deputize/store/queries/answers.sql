-- name: lock_questions
-- Whoever answers some of a call's questions does so one after the other.
select k.id from deputize.calls k where k.tenant = $1 and k.id = $2 and k.state = 'needs_input' for update;

-- name: answers_so_far
select s.box from deputize.sealed s where s.tenant = $1 and s.id = $2 and s.kind = 'answers';

-- name: keep_answers
insert into deputize.sealed (tenant, id, kind, box) values ($1, $2, 'answers', $3)
on conflict (tenant, id, kind) do update set box = excluded.box;

-- name: continued_by
-- The call that answered the questions of another, by the key it goes by.
select c.call_id from deputize.claims c where c.tenant = $1 and c.scope = $2 and c.key = $3;
