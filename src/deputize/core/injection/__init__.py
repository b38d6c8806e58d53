"""Recognize texts that look like an attempt to inject SQL, commands, scripts or instructions to a model."""
