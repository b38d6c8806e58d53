-- What tools said about the same thing, and what they disagree about: store/consistency_values.py and
-- operations/approvals/notifications/.

-- name: observe_value
select * from deputize.observe_value(
    p_tenant => $1, p_subject => $2, p_rule => $3, p_entity => $4, p_tool => $5, p_authority_rank => $6, p_call_id => $7,
    p_sealed => $8, p_within_seconds => $9, p_max_values => $10);

-- name: insert_disagreement
-- Each thing once in a window, and of each rule only so many.
insert into deputize.disagreements (tenant, rule, entity, id, tools, call_ids, expires_at)
select $1, $2, $3, $4, $5, $6, clock_timestamp() + make_interval(secs => $7)
where (select count(*) from (
           select from deputize.disagreements d
           where d.tenant = $1 and d.rule = $2 and d.expires_at > clock_timestamp() limit $8) as current_ones) < $8
on conflict (tenant, rule, entity) do update
set id = excluded.id, tools = excluded.tools, call_ids = excluded.call_ids, noticed_at = excluded.noticed_at,
    expires_at = excluded.expires_at, is_notice_due = true
where disagreements.expires_at <= clock_timestamp();

-- name: delete_expired_values
-- Some at a time; what is being written is left for the next time.
with expired as (
    select v.tenant, v.subject, v.rule, v.entity, v.tool from deputize.observed_values v
    where v.expires_at < now() order by v.expires_at limit $1 for update skip locked
), deleted as (
    delete from deputize.observed_values v using expired e
    where v.tenant = e.tenant and v.subject = e.subject and v.rule = e.rule and v.entity = e.entity and v.tool = e.tool
    returning v.tool
)
select count(*) from deleted;

-- name: delete_old_disagreements
-- A notification may be on its way for a day after the window.
with old as (
    select d.tenant, d.rule, d.entity from deputize.disagreements d
    where d.expires_at < now() - interval '1 day' order by d.expires_at limit $1 for update skip locked
), deleted as (
    delete from deputize.disagreements d using old o
    where d.tenant = o.tenant and d.rule = o.rule and d.entity = o.entity returning d.id
)
select count(*) from deleted;

-- name: load_disagreement
select rule, tools, call_ids, noticed_at from deputize.disagreements where tenant = $1 and id = $2;

-- name: list_due_disagreements
select tenant, id, tools from deputize.disagreements where is_notice_due order by noticed_at limit $1;

-- name: take_disagreement
-- The notifications are written in the same transaction.
update deputize.disagreements set is_notice_due = false where tenant = $1 and id = $2 and is_notice_due returning true;

-- name: insert_disagreement_notifications
insert into deputize.notifications (tenant, grp, receiver, approval_id, kind)
select $1, $2, r, $3, 'disagreement' from unnest($4::bytea[]) as r;
