-- Roles belong to the server, not to one database, so they are made only where they are missing.
do $$
declare name text;
begin
    foreach name in array array['deputize_owner', 'deputize_writer', 'deputize_reader'] loop
        if not exists (select from pg_roles where rolname = name) then
            begin
                execute format('create role %I nologin', name);
            exception when duplicate_object or unique_violation then null;
            end;
        end if;
        -- Who makes a role may grant it, but not take it until granted: being a member alone says too little.
        if not pg_has_role(session_user, name, 'usage') then
            execute format('grant %I to %I', name, session_user);
        end if;
    end loop;
end $$;
