create table deputize.lineages (
    id               uuid primary key default gen_random_uuid(),
    number           integer not null unique check (number > 0),
    began_at         timestamptz not null default clock_timestamp(),
    -- Set when a gateway found that the database lacks what was committed to it: every gateway stops.
    went_back_at     timestamptz,
    went_back_reason text
);
comment on table deputize.lineages is
    'Histories of this database; the one with the highest number is current. A point-in-time restore makes the database go '
    'back, and a new lineage begins when a person confirms that it is to be used.';
grant select, insert, update on deputize.lineages to deputize_writer;
insert into deputize.lineages (number) values (1);

create function deputize.read_lineage() returns table (
    id uuid, number integer, began_at timestamptz, went_back_reason text, epoch_sum bigint, is_standby boolean,
    server text, timeline text
) language plpgsql stable as $$
begin
    is_standby := pg_catalog.pg_is_in_recovery();
    -- Not every provider lets every login read these two, which only describe the server.
    begin
        -- The database too: one server may hold several.
        server := (select c.system_identifier::text from pg_catalog.pg_control_system() as c)
            || '/' || (select d.oid from pg_catalog.pg_database as d where d.datname = current_database());
        timeline := left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8);
    exception when insufficient_privilege or object_not_in_prerequisite_state then
        null;
    end;
    select coalesce(sum(e.registry + e.policy + e.revocation), 0) into epoch_sum from deputize.epochs e;
    select l.id, l.number, l.began_at, l.went_back_reason into id, number, began_at, went_back_reason
    from deputize.lineages l order by l.number desc limit 1;
    return next;
end $$;
comment on function deputize.read_lineage is
    'Return the current lineage, the sum of all epochs, and which server this is. The sum never decreases within a lineage.';

create function deputize.begin_lineage(p_number integer, p_epochs bigint) returns table (
    id uuid, calls bigint, approvals bigint
) language plpgsql as $$
begin
    insert into deputize.lineages (number) values (p_number) returning lineages.id into id;
    update deputize.epochs e
    set registry = e.registry + p_epochs, policy = e.policy + p_epochs, revocation = e.revocation + p_epochs;
    with closed as (
        update deputize.approvals a set state = 'void', next_at = null, closed_at = now()
        where a.state in ('open', 'approved') returning a.tenant, a.id
    ), resolved as (
        update deputize.tickets t set state = 'resolved', resolved_at = now(), resolved_by = '', resolution = 'void',
            reason = 'the database was restored'
        from closed where t.tenant = closed.tenant and t.id = closed.id and t.state = 'open'
    ), deleted as (
        delete from deputize.approval_groups g using closed where g.tenant = closed.tenant and g.id = closed.id
    )
    select count(*) into approvals from closed;
    -- The next epoch of their owners: no process of before can close them, and none may take them for untouched.
    with ended as (
        update deputize.calls k
        set state = 'unknown', owner_epoch = k.owner_epoch + 1
        where k.state in ('running', 'queued', 'awaiting_approval') returning 1
    )
    select count(*) into calls from ended;
    return next;
end $$;
comment on function deputize.begin_lineage is
    'Begin a lineage: authority counts on above all epochs that a gateway may remember, approval requests are void, and the '
    'outcome of every open call is unknown, because it may have gone on in the time that the database lost.';

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function deputize.secure_table, deputize.erase_calls, deputize.erase_names from deputize_writer;
