"""Parts of Deputize on a real PostgreSQL."""
