"""What proves a call later: audit entries, redaction, metrics, traces."""
