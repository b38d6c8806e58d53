-- Functions may be executed by everybody unless it is revoked. Every migration that adds some repeats these statements.

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
-- Secures tables, so it is for migrations alone.
revoke execute on function deputize.secure_table from deputize_writer;
