create table deputize.contract_tests (
    tenant        text not null references deputize.tenants,
    id            uuid not null,
    tool          text not null,
    version       text not null,
    digest        text not null,
    verdict       text not null check (verdict in ('passed', 'failed', 'unchecked')),
    cases         integer not null check (cases > 0),
    failures      integer not null check (failures between 0 and cases),
    -- The result as a JSON Web Signature of the gateway that the calls went through.
    attestation   text not null,
    tested_at     timestamptz not null,
    recorded_at   timestamptz not null default clock_timestamp(),
    is_notice_due boolean not null default false,
    primary key (tenant, id)
);
create index contract_tests_by_tool on deputize.contract_tests (tenant, tool, tested_at desc);
create index contract_tests_to_notify on deputize.contract_tests (recorded_at) where is_notice_due;
comment on table deputize.contract_tests is
    'Results of contract tests, by the digest of the tested contract: also of versions that are not registered yet.';
select deputize.secure_table('contract_tests', 'select, insert, update, delete');

alter table deputize.notifications drop constraint notifications_kind_check;
alter table deputize.notifications add constraint notifications_kind_check
    check (kind in ('asked', 'escalated', 'reminder', 'broken-glass', 'digest', 'contract-test')) not valid;
alter table deputize.notifications validate constraint notifications_kind_check;
