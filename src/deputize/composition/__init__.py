"""Build the parts of a gateway from its settings, each once. `app.py` starts them in order."""
