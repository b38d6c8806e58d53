"""Run calls that outlive their request: resume, retry, checkpoint, lock."""
