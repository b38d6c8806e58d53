-- Retention: what is deleted after its time, and who does it.

create table deputize.periodic_tasks (name text primary key, begun_at timestamptz not null);
comment on table deputize.periodic_tasks is 'When each periodic task was last begun, so that one of any number of processes does it.';
grant select, insert, update on deputize.periodic_tasks to deputize_writer;

create function deputize.claim_periodic_task(p_name text, p_minutes integer) returns boolean language plpgsql as $$
begin
    insert into deputize.periodic_tasks as c (name, begun_at) values (p_name, now())
        on conflict (name) do update set begun_at = now()
        where c.begun_at < now() - make_interval(mins => p_minutes);
    return found;
end $$;
comment on function deputize.claim_periodic_task is
    'Claim a periodic task unless another process began it within so many minutes. Returns whether it is the caller''s to do.';

create function deputize.delete_old_payloads(p_days integer) returns integer language plpgsql
    security definer set search_path = pg_catalog as $$
declare
    part text;
    day date;
    first_id uuid;
    next_id uuid;
    truncated integer := 0;
    rows_left integer;
begin
    for part, day in
        select c.relname, to_date(right(c.relname, 8), 'YYYYMMDD')
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'deputize.sealed_payloads'::regclass
          and to_date(right(c.relname, 8), 'YYYYMMDD') < (now() at time zone 'utc')::date - p_days
        order by 1
    loop
        execute format('select count(*) from (select from deputize.%I limit 1) as any_left', part) into rows_left;
        continue when rows_left = 0;
        first_id := deputize.first_uuid_of_day(day);
        next_id := deputize.first_uuid_of_day(day + 1);
        -- A day of which no call is open or lately ended is truncated; any other loses its rows one by one.
        if not exists (select from deputize.calls k where k.id >= first_id and k.id < next_id
                       and (k.ended_at is null or k.ended_at > now() - make_interval(days => p_days))) then
            execute format('truncate deputize.%I', part);
            truncated := truncated + 1;
        else
            execute format('delete from deputize.%I s where not exists (
                select from deputize.calls k where k.tenant = s.tenant and k.id = s.id
                and (k.ended_at is null or k.ended_at > now() - make_interval(days => $1)))', part) using p_days;
        end if;
    end loop;
    delete from deputize.runs r using (
        select o.tenant, o.id from deputize.runs o
        where o.id < deputize.first_uuid_of_day((now() at time zone 'utc')::date - p_days)
          and exists (select from deputize.calls k where k.tenant = o.tenant and k.id = o.id
                      and k.ended_at < now() - make_interval(days => p_days) and k.state <> 'unknown')
        order by o.id limit 100000) as old
    where r.tenant = old.tenant and r.id = old.id;
    -- A claim whose window is over means nothing: the next call with its key takes it anyway.
    delete from deputize.claims c using deputize.calls k
    where k.tenant = c.tenant and k.id = c.call_id and k.window_ends < now() - interval '1 day'
      and c.call_id < deputize.first_uuid_of_day((now() at time zone 'utc')::date - p_days);
    return truncated;
end $$;
comment on function deputize.delete_old_payloads is
    'Delete sealed payloads and runs of calls that ended more than so many days ago, and claims whose window is over. '
    'Returns how many days'' partitions were truncated.';
