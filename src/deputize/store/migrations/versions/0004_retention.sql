-- When a decision last relied on a record, to the day: an entry of the audit log may name a record that is much older.
alter table deputize.decisions add column last_at timestamptz not null default now();

create function deputize.record_decisions(p_tenants text[], p_ids text[], p_records bytea[]) returns void
    language sql security definer set search_path = pg_catalog as $$
    insert into deputize.decisions as d (tenant, id, record)
    select distinct on (u.tenant, u.id) u.tenant, u.id, u.record
    from unnest(p_tenants, p_ids, p_records) as u (tenant, id, record) order by u.tenant, u.id
    on conflict (tenant, id) do update set last_at = now() where d.last_at < now() - interval '1 day'
$$;
comment on function deputize.record_decisions is
    'Store decision records, or note that existing ones are still relied on. The writer cannot change a record.';

create function deputize.delete_ended_grants(p_days integer, p_limit integer) returns integer language plpgsql
    security definer set search_path = pg_catalog as $$
declare
    deleted_count integer;
begin
    -- No token of a grant, or of one made from it, is valid after the grant's end. Others are deleted before their parents.
    with ended as (
        select g.tenant, g.id from deputize.grants g
        where g.not_after < now() - make_interval(days => greatest(p_days, 1))
          and not exists (select from deputize.grants c where c.tenant = g.tenant and c.parent = g.id)
        order by g.not_after limit p_limit for update skip locked
    ), forgotten_revocations as (
        delete from deputize.revocations r using ended e
        where r.tenant = e.tenant and r.kind in ('grant', 'token') and r.value = e.id::text
    ), deleted as (
        delete from deputize.grants g using ended e where g.tenant = e.tenant and g.id = e.id returning g.id
    )
    select count(*) into deleted_count from deleted;
    return deleted_count;
end $$;
comment on function deputize.delete_ended_grants is
    'Delete grants that ended more than so many days ago, and the revocations of their ids, some at a time. Other '
    'revocations stay: it is not known when the tokens they are about expire. Returns how many grants were deleted.';

create function deputize.delete_old_decisions(p_days integer, p_limit integer) returns integer language plpgsql
    security definer set search_path = pg_catalog as $$
declare
    deleted_count integer;
begin
    -- A process notes once a day that it relies on a record, to the day: a record may be two days newer than it says.
    with old as (
        select d.tenant, d.id from deputize.decisions d
        where d.last_at < now() - make_interval(days => greatest(p_days, 1) + 2)
        order by d.last_at limit p_limit for update skip locked
    ), deleted as (
        delete from deputize.decisions d using old o where d.tenant = o.tenant and d.id = o.id returning d.id
    )
    select count(*) into deleted_count from deleted;
    return deleted_count;
end $$;
comment on function deputize.delete_old_decisions is
    'Delete decision records that no decision relied on for so many days, some at a time. Returns how many.';

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function deputize.secure_table from deputize_writer;
