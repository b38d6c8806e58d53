"""Redact documents for people, logs, audit entries and events: by schema, by name, by value and by shape."""
