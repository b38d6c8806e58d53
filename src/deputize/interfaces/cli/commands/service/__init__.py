"""Define the commands that prepare, start and examine a Deputize service."""
