create table deputize.policy_proposals (
    tenant      text not null references deputize.tenants,
    digest      text not null,
    base_epoch  bigint not null,
    files       bytea not null,
    proposed_by text not null,
    proposed_at timestamptz not null default now(),
    expires_at  timestamptz not null,
    primary key (tenant, digest)
);
comment on table deputize.policy_proposals is
    'Sets of policies that one operator proposed and another must confirm. base_epoch is the policy epoch that they would '
    'change: a proposal counts only while that is the current one.';
select deputize.secure_table('policy_proposals', 'select, insert, update, delete');
