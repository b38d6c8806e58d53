-- What is kept for a while is forgotten after it: sealed originals, what runs are gone on with, keys whose window is over.

-- When each chore was last begun, so that of any number of processes one does it.
create table deputize.chores (name text primary key, begun_at timestamptz not null);
grant select, insert, update on deputize.chores to deputize_writer;

create index runs_by_id on deputize.runs (id);

-- Whether it is ours to do now: nobody began it within so many minutes.
create function deputize.begin_chore(p_name text, p_minutes integer) returns boolean language plpgsql as $$
begin
    insert into deputize.chores as c (name, begun_at) values (p_name, now())
        on conflict (name) do update set begun_at = now()
        where c.begun_at < now() - make_interval(mins => p_minutes);
    return found;
end $$;

-- Originals of calls that ended so many days ago. Days nobody needs anything of are emptied at once; of others, row by row.
create function deputize.forget_originals(p_days integer) returns integer language plpgsql
    security definer set search_path = pg_catalog as $$
declare
    part text;
    day date;
    before uuid;
    after uuid;
    gone integer := 0;
    left_there integer;
begin
    for part, day in
        select c.relname, to_date(right(c.relname, 8), 'YYYYMMDD')
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'deputize.sealed'::regclass
          and to_date(right(c.relname, 8), 'YYYYMMDD') < (now() at time zone 'utc')::date - p_days
        order by 1
    loop
        execute format('select count(*) from (select from deputize.%I limit 1) as any_left', part) into left_there;
        continue when left_there = 0;
        before := deputize.day_floor(day);
        after := deputize.day_floor(day + 1);
        if not exists (select from deputize.calls k where k.id >= before and k.id < after
                       and (k.ended_at is null or k.ended_at > now() - make_interval(days => p_days))) then
            execute format('truncate deputize.%I', part);
            gone := gone + 1;
        else
            execute format('delete from deputize.%I s where not exists (
                select from deputize.calls k where k.tenant = s.tenant and k.id = s.id
                and (k.ended_at is null or k.ended_at > now() - make_interval(days => $1)))', part) using p_days;
        end if;
    end loop;
    delete from deputize.runs r using (
        select o.tenant, o.id from deputize.runs o
        where o.id < deputize.day_floor((now() at time zone 'utc')::date - p_days)
          and exists (select from deputize.calls k where k.tenant = o.tenant and k.id = o.id
                      and k.ended_at < now() - make_interval(days => p_days) and k.state <> 'unknown')
        order by o.id limit 100000) as old
    where r.tenant = old.tenant and r.id = old.id;
    -- A key whose window is over counts for nothing: whoever uses it next takes it anyway.
    delete from deputize.claims c using deputize.calls k
    where k.tenant = c.tenant and k.id = c.call_id and k.window_ends < now() - interval '1 day'
      and c.call_id < deputize.day_floor((now() at time zone 'utc')::date - p_days);
    return gone;
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
