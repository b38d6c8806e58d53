"""Record what proves a call later: audit entries, redaction, metrics and traces."""
