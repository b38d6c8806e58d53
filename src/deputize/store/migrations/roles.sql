-- The roles of the schema. Roles belong to the server, not to one database, so only those that are missing are created.
do $$
declare name text;
begin
    foreach name in array array['deputize_owner', 'deputize_writer', 'deputize_reader', 'deputize_engine'] loop
        if not exists (select from pg_roles where rolname = name) then
            begin
                execute format('create role %I nologin', name);
            exception when duplicate_object or unique_violation then null;
            end;
        end if;
        -- Anyone who creates a role may grant it, but is not allowed to use it until it is granted. The login that
        -- migrates owns the engine's tables, so that role is for other logins.
        if name <> 'deputize_engine' and not pg_has_role(session_user, name, 'usage') then
            execute format('grant %I to %I', name, session_user);
        end if;
    end loop;
end $$;
