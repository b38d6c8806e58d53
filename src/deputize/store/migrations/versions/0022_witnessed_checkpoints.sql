create table deputize.log_witnessed_checkpoints (
    tenant       text not null,
    size         bigint not null check (size > 0),
    note         bytea not null,
    cosignatures smallint not null check (cosignatures > 0),
    witnessed_at timestamptz not null default clock_timestamp(),
    primary key (tenant, size)
);
comment on table deputize.log_witnessed_checkpoints is
    'Checkpoints that enough witnesses cosigned, with their cosignatures.';
select deputize.secure_table('log_witnessed_checkpoints', 'select, insert');
