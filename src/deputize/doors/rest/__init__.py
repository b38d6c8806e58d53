"""HTTP as people and agents speak it: plain ASGI where calls are made, FastAPI for the rest, one document for both."""
