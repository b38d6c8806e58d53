-- What `deputize.enqueue_run` does with its owner's rights; said anew after every migration of the engine.
grant usage on schema dbos to deputize_owner;
grant select, insert, update on all tables in schema dbos to deputize_owner;
grant execute on all functions in schema dbos to deputize_owner;
