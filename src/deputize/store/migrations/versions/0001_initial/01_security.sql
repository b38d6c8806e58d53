-- Who may do what: the schema's three roles, and how every table with a tenant is secured.
--
-- deputize_owner   owns everything and migrates
-- deputize_writer  writes for every tenant: a batch carries rows of many
-- deputize_reader  reads the one tenant it names in the setting `deputize.tenant`

grant usage on schema deputize to deputize_reader, deputize_writer;

create function deputize.secure_table(table_name text, writer_privileges text) returns void language plpgsql as $$
begin
    execute format('alter table deputize.%I enable row level security', table_name);
    execute format('alter table deputize.%I force row level security', table_name);
    execute format('create policy one_tenant on deputize.%I for select to deputize_reader
                    using (tenant = current_setting(''deputize.tenant'', true))', table_name);
    execute format('create policy every_tenant on deputize.%I to deputize_writer using (true) with check (true)',
        table_name);
    execute format('create policy owner_maintains on deputize.%I to deputize_owner using (true) with check (true)',
        table_name);
    execute format('grant select on deputize.%I to deputize_reader', table_name);
    execute format('grant %s on deputize.%I to deputize_writer', writer_privileges, table_name);
end $$;
comment on function deputize.secure_table is
    'Force row-level security on a table with a tenant column, add the policies of the three roles, and grant the reader '
    'select and the writer what the second argument lists. For migrations: each calls it for every such table it creates.';
