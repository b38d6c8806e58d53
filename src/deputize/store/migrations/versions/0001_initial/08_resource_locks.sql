-- Resource locks: order among runs. A run that writes requests a lock on everything it may touch, and one for each hard
-- limit it falls under. It begins when it can hold all of its locks at once; until then its locks are rows that wait. A lock
-- belongs to a call, not to a process: it survives the worker, and is released when the call ends.

create table deputize.resource_locks (
    tenant    text not null,
    call_id   uuid not null,
    -- Whose queue it stands in: the tenant's own, or '' for one that all tenants share.
    namespace text not null,
    resource  text not null,
    scope     text collate "C" not null,
    -- What is certain about the scope: all of it, or what comes before the first *.
    scope_prefix text collate "C" generated always as (split_part(scope, '*', 1)) stored,
    is_pattern boolean generated always as (strpos(scope, '*') > 0) stored,
    -- How many calls may hold such a lock at once.
    capacity integer not null,
    priority  smallint not null,
    requested_at timestamptz not null default now(),
    is_held   boolean not null default false,
    -- When its run was last woken to try again; null since it last tried in vain.
    woken_at  timestamptz,
    -- When its call ended or went back into the queue. The row then only says which runs behind it are to be woken.
    released_at timestamptz,
    primary key (tenant, call_id, namespace, resource, scope)
);
create index resource_locks_held on deputize.resource_locks (namespace, resource, scope_prefix) where is_held;
create index resource_locks_waiting
    on deputize.resource_locks (namespace, resource, scope_prefix, priority, requested_at, call_id)
    where not is_held and released_at is null;
create index resource_locks_patterns on deputize.resource_locks (namespace, resource, scope_prefix) where is_pattern;
create index resource_locks_woken on deputize.resource_locks (woken_at) where woken_at is not null and not is_held;
create index resource_locks_released on deputize.resource_locks (released_at) where released_at is not null;
comment on table deputize.resource_locks is 'Locks that runs hold or wait for.';
select deputize.secure_table('resource_locks', 'select, insert, update, delete');

create function deputize.acquire_lock_queues(namespaces text[], resources text[]) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock(k) from (
        select distinct hashtextextended('deputize.lock_queue.' || q.namespace || chr(31) || q.resource, 0) as k
        from unnest(namespaces, resources) as q(namespace, resource) order by 1) as keys;
end $$;
comment on function deputize.acquire_lock_queues is
    'Acquire the queues of these resources until the commit, in one order for all, so that no run is told to wait for one '
    'that is just leaving.';

create function deputize.scopes_overlap(a text, b text) returns boolean language sql immutable parallel safe as $$
    select case when strpos(a, '*') = 0 and strpos(b, '*') = 0
        then a = b or starts_with(a, b || '/') or starts_with(b, a || '/')
        else starts_with(split_part(a, '*', 1), split_part(b, '*', 1))
             or starts_with(split_part(b, '*', 1), split_part(a, '*', 1)) end
$$;
comment on function deputize.scopes_overlap is
    'Whether two scopes overlap. A scope covers what lies below it (a/b covers a/b/c). A pattern is compared by its prefix '
    'alone: a wait too many is better than one too few.';

create function deputize.find_overlapping_locks(p_namespace text, p_resource text, p_scope text)
    returns setof deputize.resource_locks language sql stable as $$
    -- Found through the indexed prefixes, judged by scopes_overlap.
    select o.* from deputize.resource_locks o
    where o.namespace = p_namespace and o.resource = p_resource and o.released_at is null
      and (o.scope_prefix = any(array(
               select left(split_part(p_scope, '*', 1), n) from generate_series(0, length(p_scope)) as n))
           or o.scope_prefix >= split_part(p_scope, '*', 1) || '/' and o.scope_prefix < split_part(p_scope, '*', 1) || '0'
           or (o.is_pattern or strpos(p_scope, '*') > 0) and o.scope_prefix > split_part(p_scope, '*', 1)
              and o.scope_prefix < split_part(p_scope, '*', 1) || chr(1114111))
      and deputize.scopes_overlap(o.scope, p_scope)
$$;
comment on function deputize.find_overlapping_locks is
    'Find every lock in one queue, held or waiting, whose scope overlaps the given one.';

create function deputize.must_wait_for_locks(p_tenant text, p_call_id uuid) returns boolean language plpgsql as $$
declare
    mine deputize.resource_locks;
    others integer;
begin
    for mine in
        select * from deputize.resource_locks p where p.tenant = p_tenant and p.call_id = p_call_id and not p.is_held
    loop
        select count(*) into others from (
            (select from deputize.find_overlapping_locks(mine.namespace, mine.resource, mine.scope) o
             where o.is_held and o.call_id <> mine.call_id limit mine.capacity)
            union all
            -- In a queue that tenants share no one comes first: one tenant's turn must not depend on another's queue.
            (select from deputize.find_overlapping_locks(mine.namespace, mine.resource, mine.scope) o
             where not o.is_held and mine.namespace <> '' and o.call_id <> mine.call_id
               and (o.priority, o.requested_at, o.call_id) < (mine.priority, mine.requested_at, mine.call_id)
             limit mine.capacity)) as found;
        if others >= mine.capacity then
            return true;
        end if;
    end loop;
    return false;
end $$;
comment on function deputize.must_wait_for_locks is
    'Whether another call holds a lock this call needs, or waits for it ahead of this call.';

create function deputize.request_locks(
    p_tenant text, p_call_id uuid,
    locks_call_id uuid[], locks_namespace text[], locks_resource text[], locks_scope text[], locks_capacity integer[]
) returns boolean language plpgsql as $$
begin
    -- The needs are those of now: settings may have changed since the run began to wait.
    delete from deputize.resource_locks p where p.tenant = p_tenant and p.call_id = p_call_id and not exists (
        select from unnest(locks_call_id, locks_namespace, locks_resource, locks_scope)
            as n(call_id, namespace, resource, scope)
        where n.call_id = p_call_id and n.namespace = p.namespace and n.resource = p.resource and n.scope = p.scope);
    insert into deputize.resource_locks (tenant, call_id, namespace, resource, scope, capacity, priority)
        select p_tenant, p_call_id, n.namespace, n.resource, n.scope, n.capacity, r.priority
        from unnest(locks_call_id, locks_namespace, locks_resource, locks_scope, locks_capacity)
            as n(call_id, namespace, resource, scope, capacity)
        join deputize.runs r on r.tenant = p_tenant and r.id = p_call_id
        where n.call_id = p_call_id
        on conflict (tenant, call_id, namespace, resource, scope) do update
            set capacity = excluded.capacity, released_at = null,
                requested_at = case when resource_locks.released_at is null then resource_locks.requested_at
                                    else now() end;
    update deputize.calls set uses_resource_locks = true
        where tenant = p_tenant and id = p_call_id and not uses_resource_locks;
    if deputize.must_wait_for_locks(p_tenant, p_call_id) then
        update deputize.resource_locks set woken_at = null
            where tenant = p_tenant and call_id = p_call_id and not is_held;
        return true;
    end if;
    update deputize.resource_locks set is_held = true where tenant = p_tenant and call_id = p_call_id and not is_held;
    return false;
end $$;
comment on function deputize.request_locks is
    'Request the locks a run needs, and hold all of them or none. Returns whether the run has to wait.';

create function deputize.wake_run(p_tenant text, p_call_id uuid, p_priority integer) returns boolean language plpgsql as $$
begin
    update deputize.resource_locks set woken_at = now()
    where tenant = p_tenant and call_id = p_call_id and not is_held and released_at is null
      and (woken_at is null or woken_at < now() - interval '5 minutes');
    if not found then
        return false;
    end if;
    perform deputize.enqueue_run(p_tenant, p_call_id, p_priority, 0, true);
    return true;
end $$;
comment on function deputize.wake_run is
    'Make a waiting run try again: the engine gets it once more, ahead of runs that never waited.';

create function deputize.wake_next_runs(p_namespace text, p_resource text, p_scope text) returns void language plpgsql as $$
declare
    waits deputize.resource_locks;
    room integer;
begin
    for waits in
        select * from deputize.resource_locks o
        where not o.is_held and o.released_at is null and o.namespace = p_namespace and o.resource = p_resource
          and o.scope_prefix = split_part(p_scope, '*', 1) and o.scope = p_scope
        order by o.priority, o.requested_at, o.call_id
    loop
        perform deputize.wake_run(waits.tenant, waits.call_id, waits.priority);
        room := coalesce(room, waits.capacity) - 1;
        exit when room <= 0;
    end loop;
    for waits in
        select * from deputize.find_overlapping_locks(p_namespace, p_resource, p_scope) o
        where not o.is_held and o.scope <> p_scope
        order by o.priority, o.requested_at, o.call_id limit 32
    loop
        perform deputize.wake_run(waits.tenant, waits.call_id, waits.priority);
    end loop;
end $$;
comment on function deputize.wake_next_runs is
    'Wake as many runs as may hold a released lock, and those that wait for a scope overlapping it. Each of them checks '
    'again whether it has to wait.';

create function deputize.release_locks() returns trigger language plpgsql as $$
begin
    -- No run is woken here: that needs the lock queues, and this is inside another commit.
    update deputize.resource_locks set released_at = now(), is_held = false
        where tenant = new.tenant and call_id = new.id;
    return null;
end $$;
comment on function deputize.release_locks is 'Trigger: release the locks of a call that ended or went back into the queue.';
create trigger calls_release_locks after update of state on deputize.calls for each row
    when (new.uses_resource_locks and new.state <> old.state and new.state <> 'running')
    execute function deputize.release_locks();

create function deputize.wake_runs_behind(p_call_id uuid) returns void language plpgsql as $$
declare
    released deputize.resource_locks;
begin
    for released in
        delete from deputize.resource_locks where call_id = p_call_id and released_at is not null returning *
    loop
        perform deputize.wake_next_runs(released.namespace, released.resource, released.scope);
    end loop;
end $$;
comment on function deputize.wake_runs_behind is
    'Delete the released locks of a call and wake the runs behind them. The caller has acquired their queues.';

create function deputize.clean_lock_queues() returns void language plpgsql as $$
declare
    released uuid[];
begin
    if not pg_try_advisory_xact_lock(hashtextextended('deputize.clean_lock_queues', 0)) then
        return;
    end if;
    select array_agg(distinct p.call_id) into released from (
        select call_id from deputize.resource_locks
        where released_at < now() - interval '1 second' order by released_at limit 200) as p;
    if released is not null then
        perform deputize.acquire_lock_queues(array_agg(namespace), array_agg(resource))
            from deputize.resource_locks where call_id = any(released);
        perform deputize.wake_runs_behind(each) from unnest(released) as each;
    end if;
    perform deputize.wake_run(p.tenant, p.call_id, p.priority) from (
        select distinct tenant, call_id, priority from deputize.resource_locks
        where woken_at < now() - interval '5 minutes' and not is_held and released_at is null limit 200) as p;
end $$;
comment on function deputize.clean_lock_queues is
    'Do what a dead process left undone: wake the runs behind locks released over a second ago, and again those that were '
    'woken long ago and never tried.';
