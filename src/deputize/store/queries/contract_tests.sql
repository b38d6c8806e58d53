-- Results of contract tests: operations/admin/contract_tests.py and operations/approvals/notifications/.

-- name: list_entries_of_calls
-- The audit entries of the calls that a report cites.
select a.call_id, a.entry from deputize.audit_entries a where a.tenant = $1 and a.call_id = any ($2::uuid[]);

-- name: insert_contract_test
-- The same attestation is stored once.
insert into deputize.contract_tests
    (tenant, id, tool, version, digest, verdict, cases, failures, attestation, tested_at, is_notice_due)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
on conflict (tenant, id) do nothing;

-- name: delete_old_contract_tests
-- Keep the newest results of a tool.
delete from deputize.contract_tests t
where t.tenant = $1 and t.tool = $2 and not t.is_notice_due and t.id not in (
    select n.id from deputize.contract_tests n where n.tenant = $1 and n.tool = $2 order by n.tested_at desc limit $3);

-- name: load_newest_contract_test
select verdict, tested_at from deputize.contract_tests
where tenant = $1 and tool = $2 and digest = $3 order by tested_at desc, id desc limit 1;

-- name: list_contract_tests
select id, digest, verdict, cases, failures, attestation, tested_at, recorded_at from deputize.contract_tests
where tenant = $1 and tool = $2 and version = $3 order by tested_at desc, id desc limit $4;

-- name: load_contract_test
select tool, version, cases, failures, tested_at from deputize.contract_tests where tenant = $1 and id = $2;

-- name: list_red_contract_tests
select tenant, id, tool from deputize.contract_tests where is_notice_due order by recorded_at limit $1;

-- name: take_red_contract_test
-- The notifications are written in the same transaction.
update deputize.contract_tests set is_notice_due = false where tenant = $1 and id = $2 and is_notice_due returning true;

-- name: insert_test_notifications
insert into deputize.notifications (tenant, grp, receiver, approval_id, kind)
select $1, $2, r, $3, 'contract-test' from unnest($4::bytea[]) as r;
