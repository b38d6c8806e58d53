-- Order among runs: places in lines. A run that writes stands in the line of everything it may touch, and in that of each
-- hard limit it comes under; it begins when it can have all of its places at once, and until then it is a row here and
-- nothing else. A place belongs to its call, not to a process: it survives whoever carries the call, and goes with its end.

-- The epoch up to which nothing had happened, and since when no worker that was asked could carry the run.
alter table deputize.runs add column untouched integer not null default 0, add column unable_since timestamptz;

create table deputize.places (
    tenant    text not null,
    call_id   uuid not null,
    -- Whose line it is: the tenant's own, or '' for one that all tenants share.
    space     text not null,
    resource  text not null,
    scope     text collate "C" not null,
    -- What is certain about the scope: all of it, or what comes before the first *.
    stem      text collate "C" generated always as (split_part(scope, '*', 1)) stored,
    wild      boolean generated always as (strpos(scope, '*') > 0) stored,
    -- How many may hold such a place at once.
    most      integer not null,
    priority  smallint not null,
    since     timestamptz not null default now(),
    held      boolean not null default false,
    -- When it was told to try again; nothing since it last tried in vain.
    called_at timestamptz,
    -- When its call ended or went back into the queue. It stands in no line then, but those behind it must still be called.
    left_at   timestamptz,
    primary key (tenant, call_id, space, resource, scope)
);
create index places_held on deputize.places (space, resource, stem) where held;
create index places_waiting on deputize.places (space, resource, stem, priority, since, call_id)
    where not held and left_at is null;
create index places_wild on deputize.places (space, resource, stem) where wild;
create index places_called on deputize.places (called_at) where called_at is not null and not held;
create index places_left on deputize.places (left_at) where left_at is not null;

alter table deputize.places enable row level security;
alter table deputize.places force row level security;
create policy one_tenant on deputize.places for select to deputize_reader
    using (tenant = current_setting('deputize.tenant', true));
create policy every_tenant on deputize.places to deputize_writer using (true) with check (true);
create policy owner_maintains on deputize.places to deputize_owner using (true) with check (true);
grant select on deputize.places to deputize_reader;
grant select, insert, update, delete on deputize.places to deputize_writer;

-- Whoever looks at lines and changes them holds these until it commits, in one order for all, so that nobody is told to wait
-- for somebody who is just leaving.
create function deputize.hold_lines(spaces text[], resources text[]) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock(k) from (
        select distinct hashtextextended('deputize.line.' || l.space || chr(31) || l.resource, 0) as k
        from unnest(spaces, resources) as l(space, resource) order by 1) as keys;
end $$;

-- A scope covers what lies below it (`a/b` covers `a/b/c`). A pattern is compared by its stem alone: rather one wait too many.
create function deputize.scopes_overlap(a text, b text) returns boolean language sql immutable parallel safe as $$
    select case when strpos(a, '*') = 0 and strpos(b, '*') = 0
        then a = b or starts_with(a, b || '/') or starts_with(b, a || '/')
        else starts_with(split_part(a, '*', 1), split_part(b, '*', 1))
             or starts_with(split_part(b, '*', 1), split_part(a, '*', 1)) end
$$;

-- Every place in one line that overlaps another place, by whoever; found through the stems, judged by the rule above.
create function deputize.overlapping(p_space text, p_resource text, p_scope text) returns setof deputize.places
    language sql stable as $$
    select o.* from deputize.places o where o.space = p_space and o.resource = p_resource and o.left_at is null
      and (o.stem = any(array(select left(split_part(p_scope, '*', 1), n) from generate_series(0, length(p_scope)) as n))
           or o.stem >= split_part(p_scope, '*', 1) || '/' and o.stem < split_part(p_scope, '*', 1) || '0'
           or (o.wild or strpos(p_scope, '*') > 0) and o.stem > split_part(p_scope, '*', 1)
              and o.stem < split_part(p_scope, '*', 1) || chr(1114111))
      and deputize.scopes_overlap(o.scope, p_scope)
$$;

-- Whether somebody holds what this call needs, or stands before it in one of its lines. In a line that tenants share nobody
-- stands before anybody: one tenant's turn must not depend on another's queue.
create function deputize.must_wait(p_tenant text, p_id uuid) returns boolean language plpgsql as $$
declare
    mine deputize.places;
    others integer;
begin
    for mine in select * from deputize.places p where p.tenant = p_tenant and p.call_id = p_id and not p.held loop
        select count(*) into others from (
            (select from deputize.overlapping(mine.space, mine.resource, mine.scope) o
             where o.held and o.call_id <> mine.call_id limit mine.most)
            union all
            (select from deputize.overlapping(mine.space, mine.resource, mine.scope) o
             where not o.held and mine.space <> '' and o.call_id <> mine.call_id
               and (o.priority, o.since, o.call_id) < (mine.priority, mine.since, mine.call_id) limit mine.most)) as found;
        if others >= mine.most then
            return true;
        end if;
    end loop;
    return false;
end $$;

-- Tells a run that waits to try again: the engine gets it once more, before those that never waited.
create function deputize.call_up(p_tenant text, p_id uuid, p_priority integer) returns boolean language plpgsql as $$
begin
    update deputize.places set called_at = now()
    where tenant = p_tenant and call_id = p_id and not held and left_at is null
      and (called_at is null or called_at < now() - interval '5 minutes');
    if not found then
        return false;
    end if;
    perform deputize.enqueue_run(p_tenant, p_id, p_priority, 0, true);
    return true;
end $$;

-- Somebody left a line: calls up to as many as may hold such a place, and whoever stands before them for a scope that
-- overlaps it. Whoever is called looks for itself whether it still has to wait.
create function deputize.call_next(p_space text, p_resource text, p_scope text) returns void language plpgsql as $$
declare
    waits deputize.places;
    room integer;
begin
    for waits in
        select * from deputize.places o
        where not o.held and o.left_at is null and o.space = p_space and o.resource = p_resource
          and o.stem = split_part(p_scope, '*', 1) and o.scope = p_scope
        order by o.priority, o.since, o.call_id
    loop
        perform deputize.call_up(waits.tenant, waits.call_id, waits.priority);
        room := coalesce(room, waits.most) - 1;
        exit when room <= 0;
    end loop;
    for waits in
        select * from deputize.overlapping(p_space, p_resource, p_scope) o where not o.held and o.scope <> p_scope
        order by o.priority, o.since, o.call_id limit 32
    loop
        perform deputize.call_up(waits.tenant, waits.call_id, waits.priority);
    end loop;
end $$;

-- What ended, or went back into the queue, stands in no line. Every call that never stood in one pays for one comparison.
-- Nobody is called here: that needs the lines, and this is inside somebody else's commit.
alter table deputize.calls add column ordered boolean not null default false;
create function deputize.leave_lines() returns trigger language plpgsql as $$
begin
    update deputize.places set left_at = now(), held = false where tenant = new.tenant and call_id = new.id;
    return null;
end $$;
create trigger calls_ordered after update of state on deputize.calls for each row
    when (new.ordered and new.state <> old.state and new.state <> 'running')
    execute function deputize.leave_lines();

-- Calls those behind a call that has left its lines, which the caller holds, and forgets its places.
create function deputize.call_those_behind(p_id uuid) returns void language plpgsql as $$
declare
    gone deputize.places;
begin
    for gone in delete from deputize.places where call_id = p_id and left_at is not null returning * loop
        perform deputize.call_next(gone.space, gone.resource, gone.scope);
    end loop;
end $$;

-- Heals what nobody was there to do: those behind whoever left a second ago, and those called long ago who never came.
create function deputize.tidy_lines() returns void language plpgsql as $$
declare
    gone uuid[];
begin
    if not pg_try_advisory_xact_lock(hashtextextended('deputize.tidy', 0)) then
        return;
    end if;
    select array_agg(distinct p.call_id) into gone from (
        select call_id from deputize.places where left_at < now() - interval '1 second' order by left_at limit 200) as p;
    if gone is not null then
        perform deputize.hold_lines(array_agg(space), array_agg(resource)) from deputize.places where call_id = any(gone);
        perform deputize.call_those_behind(g) from unnest(gone) as g;
    end if;
    perform deputize.call_up(p.tenant, p.call_id, p.priority) from (
        select distinct tenant, call_id, priority from deputize.places
        where called_at < now() - interval '5 minutes' and not held and left_at is null limit 200) as p;
end $$;
