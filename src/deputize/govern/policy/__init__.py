"""Policy: what the tenant's Cedar rules say about a call, which rules said it, and what they were told."""
