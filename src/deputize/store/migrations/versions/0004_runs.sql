-- Runs: calls that outlive their request. A run has the id of its call; the call row stays the truth about its state,
-- and the durable engine (schema dbos) is told only its tenant and id.

create table deputize.runs (
    tenant     text not null,
    id         uuid not null,
    priority   smallint not null,
    -- Who asked, as it was decided: sealed, and never a token. Decided again whenever the run goes on.
    caller     bytea not null,
    not_after  timestamptz,
    release    text not null,
    -- How often a worker died that carried it, and how often it was handed to the engine.
    takeovers  integer not null default 0,
    handouts   integer not null default 0,
    queued_at  timestamptz not null default now(),
    started_at timestamptz,
    primary key (tenant, id)
);

-- What a running tool told about how far it is; the newest is what somebody who polls sees.
create table deputize.progress (
    tenant text not null,
    id     uuid not null,
    seq    integer not null,
    told   bytea not null,
    at     timestamptz not null default now(),
    primary key (tenant, id, seq)
);

-- Processes that carry runs. Beside their lease, because a gateway's lease leaves nothing to take over.
create table deputize.workers (
    boot       uuid primary key references deputize.leases on delete cascade,
    started_at timestamptz not null default now(),
    release    text not null
);
grant select, insert, update, delete on deputize.workers to deputize_writer;

do $$
declare name text;
begin
    foreach name in array array['runs', 'progress'] loop
        execute format('alter table deputize.%I enable row level security', name);
        execute format('alter table deputize.%I force row level security', name);
        execute format('create policy one_tenant on deputize.%I for select to deputize_reader
                        using (tenant = current_setting(''deputize.tenant'', true))', name);
        execute format('create policy every_tenant on deputize.%I to deputize_writer using (true) with check (true)', name);
        execute format('create policy owner_maintains on deputize.%I to deputize_owner using (true) with check (true)', name);
        execute format('grant select on deputize.%I to deputize_reader', name);
        execute format('grant select, insert, update on deputize.%I to deputize_writer', name);
    end loop;
end $$;

grant delete on deputize.progress to deputize_writer;

-- Tells the engine that there is a run, inside whatever transaction calls it: a rollback leaves nothing there either.
-- With the owner's rights, so that nobody else needs any in the engine's own schema. The engine forgets no name: a run
-- that is handed out again goes by its id and how often it was. Whoever was waiting goes before those that just came.
create function deputize.enqueue_run(
    p_tenant text, p_id uuid, p_priority integer, p_delay float8 default 0, p_waited boolean default false
) returns void language plpgsql security definer set search_path = pg_catalog as $$
declare
    before integer;
begin
    update deputize.runs set handouts = handouts + 1 where tenant = p_tenant and id = p_id
        returning handouts - 1 into before;
    perform dbos.enqueue_workflow(
        workflow_name => 'carry', queue_name => 'runs',
        positional_args => array[to_json(p_tenant), to_json(p_id::text)],
        workflow_id => case when before = 0 then p_id::text else p_id::text || ':' || before end,
        priority => 2 * p_priority - case when p_waited then 1 else 0 end, queue_partition_key => p_tenant,
        delay_until_epoch_ms => case when p_delay > 0 then (1000 * (extract(epoch from now()) + p_delay))::bigint end);
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
