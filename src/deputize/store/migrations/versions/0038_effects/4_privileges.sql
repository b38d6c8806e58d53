-- Who may run functions: the writer, except for those that only other functions and migrations call.

revoke execute on all routines in schema deputize from public;
grant execute on all routines in schema deputize to deputize_writer;
revoke execute on function
    deputize.erase_call_rows,
    deputize.erase_calls,
    deputize.erase_cost_tasks,
    deputize.erase_names,
    deputize.erase_stored_values,
    deputize.secure_table
    from deputize_writer;
grant execute on function deputize.name_pseudonyms, deputize.search_audit to deputize_reader;
