-- Runs: calls that outlive their request. A run has the id of its call; the call row says what state it is in, and the
-- durable engine (schema dbos) knows only its tenant and id.

create table deputize.runs (
    tenant     text not null,
    id         uuid not null,
    priority   smallint not null,
    -- The caller as authorized, sealed and without its token. Authorized again whenever the run is resumed.
    caller     bytea not null,
    not_after  timestamptz,
    release    text not null,
    -- How many workers died while they executed it, and how often it was given to the engine.
    takeovers  integer not null default 0,
    enqueue_count integer not null default 0,
    queued_at  timestamptz not null default now(),
    started_at timestamptz,
    -- The newest epoch under which its tool was never started, and since when no worker was able to execute it.
    untouched_epoch integer not null default 0,
    unable_since timestamptz,
    primary key (tenant, id)
);
create index runs_by_id on deputize.runs (id);
comment on table deputize.runs is 'What a worker needs to execute a call later: its caller, its priority and its end.';
select deputize.secure_table('runs', 'select, insert, update');

create table deputize.progress (
    tenant text not null,
    id     uuid not null,
    seq    integer not null,
    report bytea not null,
    at     timestamptz not null default now(),
    -- A part of the result is kept; any other report is worth nothing once there is a newer one.
    partial boolean not null default false,
    primary key (tenant, id, seq)
);
create index progress_by_time on deputize.progress (at);
comment on table deputize.progress is 'Progress reports and partial results of runs, sealed.';
select deputize.secure_table('progress', 'select, insert, update, delete');

create table deputize.workers (
    boot       uuid primary key references deputize.leases on delete cascade,
    started_at timestamptz not null default now(),
    release    text not null
);
comment on table deputize.workers is
    'Processes that execute runs. Apart from leases, because a gateway leaves nothing to take over when its lease ends.';
grant select, insert, update, delete on deputize.workers to deputize_writer;

create table deputize.checkpoints (
    tenant   text not null,
    call_id  uuid not null,
    seq      integer not null,
    -- The epoch of the owner that saved it; no other epoch may replace it.
    epoch    integer not null,
    kind     text not null check (kind in ('micro', 'macro', 'named')),
    name     text,
    -- The checkpoint it is a difference to; null for one that is whole.
    parent   integer,
    -- The state and its digest, sealed as exactly this row.
    ciphertext      bytea not null,
    saved_at timestamptz not null default now(),
    primary key (tenant, call_id, seq),
    check ((kind = 'named') = (name is not null))
);
comment on table deputize.checkpoints is 'Saved states of long tools, from which anyone who takes a call over resumes it.';
select deputize.secure_table('checkpoints', 'select, insert, update, delete');

create function deputize.enqueue_run(
    p_tenant text, p_call_id uuid, p_priority integer, p_delay_seconds float8 default 0, p_waited boolean default false
) returns void language plpgsql security definer set search_path = pg_catalog as $$
declare
    before integer;
begin
    update deputize.runs set enqueue_count = enqueue_count + 1 where tenant = p_tenant and id = p_call_id
        returning enqueue_count - 1 into before;
    perform dbos.enqueue_workflow(
        workflow_name => 'carry', queue_name => 'runs',
        positional_args => array[to_json(p_tenant), to_json(p_call_id::text)],
        -- The engine forgets no id, so a run that is given to it again gets its id and a number.
        workflow_id => case when before = 0 then p_call_id::text else p_call_id::text || ':' || before end,
        -- A run that has waited goes before new ones of its priority.
        priority => 2 * p_priority - case when p_waited then 1 else 0 end, queue_partition_key => p_tenant,
        delay_until_epoch_ms =>
            case when p_delay_seconds > 0 then (1000 * (extract(epoch from now()) + p_delay_seconds))::bigint end);
end $$;
comment on function deputize.enqueue_run is
    'Give a run to the engine, inside the transaction that calls this: a rollback leaves nothing there either. Runs with '
    'the owner''s rights, so that no other role needs any in the engine''s schema.';

create function deputize.continue_call_as_run(
    p_boot uuid, p_tenant text, p_call_id uuid, p_epoch integer,
    run_input bytea, run_caller bytea, run_not_after timestamptz, run_priority integer, run_release text
) returns setof deputize.commit_result language plpgsql as $$
begin
    perform deputize.acquire_barrier_shared(array[p_tenant]);
    update deputize.calls k
    set state = 'queued', ended_at = null, error = null, cancel_requested_at = null
    where k.tenant = p_tenant and k.id = p_call_id and k.owner_epoch = p_epoch
      and (k.state = 'unknown' or k.state = 'running' and k.owner = p_boot and k.cancel_requested_at is null);
    if found then
        insert into deputize.runs as r (tenant, id, priority, caller, not_after, release)
            values (p_tenant, p_call_id, run_priority, run_caller, run_not_after, run_release)
            on conflict (tenant, id) do update set priority = excluded.priority, caller = excluded.caller,
                not_after = excluded.not_after, release = excluded.release, queued_at = now();
        insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) values (p_tenant, p_call_id, 'input', run_input)
            on conflict (tenant, id, kind) do update set ciphertext = excluded.ciphertext;
        perform deputize.enqueue_run(p_tenant, p_call_id, run_priority);
        return query select 'continued', p_tenant, p_call_id, p_call_id, null::bigint, null::bigint, null::bigint;
    end if;
    return query select * from deputize.select_epochs(array[p_tenant]);
end $$;
comment on function deputize.continue_call_as_run is
    'Make a run of a call that was begun: its request ran out of time, or its outcome is unknown and its upstream accepts a '
    'repeated key. Compare-and-set on the epoch.';

create function deputize.requeue_run(p_tenant text, p_call_id uuid, p_epoch integer, p_from_states text[]) returns boolean
    language plpgsql as $$
declare
    run_priority integer;
begin
    select r.priority into run_priority from deputize.runs r where r.tenant = p_tenant and r.id = p_call_id;
    if not found then
        return false;
    end if;
    update deputize.calls k set state = 'queued', ended_at = null, error = null
    where k.tenant = p_tenant and k.id = p_call_id and k.owner_epoch = p_epoch and k.state = any(p_from_states)
      and k.cancel_requested_at is null;
    if not found then
        return false;
    end if;
    update deputize.runs r set queued_at = now() where r.tenant = p_tenant and r.id = p_call_id;
    perform deputize.enqueue_run(p_tenant, p_call_id, run_priority);
    return true;
end $$;
comment on function deputize.requeue_run is
    'Put a run that was begun back into the queue, to be retried or resumed from an earlier checkpoint. Compare-and-set on '
    'the epoch; a worker that still executes it can store neither its outcome nor a checkpoint any more.';

create function deputize.reschedule_run(p_tenant text, p_call_id uuid, p_delay_seconds float8, p_unable boolean)
    returns boolean language plpgsql as $$
declare
    run_priority integer;
begin
    select r.priority into run_priority from deputize.runs r join deputize.calls k on k.tenant = r.tenant and k.id = r.id
    where r.tenant = p_tenant and r.id = p_call_id and k.state in ('queued', 'running', 'unknown');
    if not found then
        return false;
    end if;
    if p_unable then
        update deputize.runs set unable_since = coalesce(unable_since, now()) where tenant = p_tenant and id = p_call_id;
    end if;
    perform deputize.enqueue_run(p_tenant, p_call_id, run_priority, p_delay_seconds, true);
    return true;
end $$;
comment on function deputize.reschedule_run is
    'Give a run to the engine once more, later, because this worker cannot execute it now. Remembers since when, if the '
    'reason is that the worker is unable to.';

create function deputize.undo_run_begin(
    p_tenant text, p_call_id uuid, p_epoch integer, p_untouched boolean, p_delay_seconds float8
) returns boolean language plpgsql as $$
begin
    update deputize.calls set state = case when p_untouched then 'queued' else 'unknown' end
    where tenant = p_tenant and id = p_call_id and owner_epoch = p_epoch and state = 'running';
    if not found then
        return false;
    end if;
    update deputize.runs set untouched_epoch = case when p_untouched then p_epoch else untouched_epoch end
    where tenant = p_tenant and id = p_call_id;
    return deputize.reschedule_run(p_tenant, p_call_id, p_delay_seconds, false);
end $$;
comment on function deputize.undo_run_begin is
    'Put a run back into the queue that was begun but whose tool was not started. One that was taken over becomes unknown '
    'instead: only this owner is known to have done nothing.';
