"""Define `deputize audit`: read the audit entries, and verify and prove them by their log."""
