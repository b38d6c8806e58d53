"""Take back what calls did: the plan first, then its execution, from the journal."""
