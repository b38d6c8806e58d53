-- The logins of a production database. Run this once as a superuser, connected to the database of Deputize.
--
-- deputize_migrator  for `deputize migrate` alone (DEPUTIZE_DATABASE__MIGRATION_URL): becomes the owner of the schema
-- deputize_gateway   for `deputize serve` and `deputize work` (DEPUTIZE_DATABASE__URL): can add to the audit, not change it
-- deputize_auditor   for people: reads one tenant, after `set deputize.tenant = 'acme'`
--
-- No login has a password yet. Set each with \password NAME in psql.
do $$
declare name text;
begin
    foreach name in array array['deputize_owner', 'deputize_writer', 'deputize_reader', 'deputize_engine'] loop
        if not exists (select from pg_roles where rolname = name) then
            execute format('create role %I nologin', name);
        end if;
    end loop;
    foreach name in array array['deputize_migrator', 'deputize_gateway', 'deputize_auditor'] loop
        if not exists (select from pg_roles where rolname = name) then
            execute format('create role %I login', name);
        end if;
    end loop;
    execute format('grant connect, create on database %I to deputize_migrator', current_database());
    execute format('grant connect on database %I to deputize_gateway, deputize_auditor', current_database());
end $$;
grant deputize_owner, deputize_writer, deputize_reader to deputize_migrator;
grant deputize_writer, deputize_reader, deputize_engine to deputize_gateway;
grant deputize_reader to deputize_auditor;
alter role deputize_migrator password 'trial';
alter role deputize_gateway password 'trial';
