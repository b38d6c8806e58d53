"""The command line's access to the database, on a real PostgreSQL."""
