-- A subject is an issuer's. The previous release stored users by their bare names; those stay the primary issuer's.

create table deputize.primary_issuers (
    tenant    text primary key references deputize.tenants,
    issuer    text not null check (issuer <> '' and issuer !~ '[[:space:][:cntrl:]]'),
    chosen_at timestamptz not null default now()
);
comment on table deputize.primary_issuers is
    'The issuer whose subjects a tenant stores by their bare names; subjects of others are stored with their issuer. '
    'Chosen once and never changed, because that would give the rows of one person to another.';
select deputize.secure_table('primary_issuers', 'select, insert');
