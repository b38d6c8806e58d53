"""Split large results into chunks, read parts of them back, and show a model what they hold within its budget."""
