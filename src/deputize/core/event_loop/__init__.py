"""Help with asyncio: pauses, repeated tasks and waits that end."""
