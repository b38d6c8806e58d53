"""Read the audit: search it, show one entry, follow it live, and export it."""
