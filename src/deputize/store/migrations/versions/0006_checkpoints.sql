-- What long tools save of their state, so that whoever takes a call over goes on from there.

create table deputize.checkpoints (
    tenant   text not null,
    call_id  uuid not null,
    seq      integer not null,
    -- Whose it is: the epoch of the owner that saved it. No other epoch may.
    epoch    integer not null,
    kind     text not null check (kind in ('micro', 'macro', 'named')),
    name     text,
    -- The one it is written as a difference to; none for one that is whole.
    parent   integer,
    -- The state and its digest, sealed as exactly this row.
    box      bytea not null,
    saved_at timestamptz not null default now(),
    primary key (tenant, call_id, seq),
    check ((kind = 'named') = (name is not null))
);

alter table deputize.checkpoints enable row level security;
alter table deputize.checkpoints force row level security;
create policy one_tenant on deputize.checkpoints for select to deputize_reader
    using (tenant = current_setting('deputize.tenant', true));
create policy every_tenant on deputize.checkpoints to deputize_writer using (true) with check (true);
create policy owner_maintains on deputize.checkpoints to deputize_owner using (true) with check (true);
grant select on deputize.checkpoints to deputize_reader;
grant select, insert, update, delete on deputize.checkpoints to deputize_writer;

-- A run that was begun goes back into the queue, as it was asked for: to be tried again, or to go on from an earlier
-- checkpoint. Compare-and-set; whoever still carries it is fenced, for neither its outcome nor its checkpoints fit any more.
create function deputize.requeue_run(p_tenant text, p_id uuid, p_epoch integer, p_from text[]) returns boolean
    language plpgsql as $$
declare
    run_priority integer;
begin
    select r.priority into run_priority from deputize.runs r where r.tenant = p_tenant and r.id = p_id;
    if not found then
        return false;
    end if;
    update deputize.calls k set state = 'queued', ended_at = null, error = null
    where k.tenant = p_tenant and k.id = p_id and k.owner_epoch = p_epoch and k.state = any(p_from)
      and k.cancel_asked is null;
    if not found then
        return false;
    end if;
    update deputize.runs r set queued_at = now() where r.tenant = p_tenant and r.id = p_id;
    perform deputize.enqueue_run(p_tenant, p_id, run_priority);
    return true;
end $$;

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
