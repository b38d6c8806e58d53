-- What gateways need beside the grants of the tables. Repeated after every migration, ours and the engine's.

-- A gateway compares the schema with its release before it starts.
grant select on deputize.schema_version to deputize_writer, deputize_reader;

-- What `deputize.enqueue_run` does in the engine's schema with its owner's rights.
grant usage on schema dbos to deputize_owner;
grant select, insert, update on all tables in schema dbos to deputize_owner;
grant execute on all functions in schema dbos to deputize_owner;

-- What the engine does in a gateway or worker, with the rights of its login.
grant usage on schema dbos to deputize_engine;
grant select, insert, update, delete on all tables in schema dbos to deputize_engine;
grant usage on all sequences in schema dbos to deputize_engine;
grant execute on all functions in schema dbos to deputize_engine;
