"""Calls that people decide about: asked for, decided, begun as what was approved, and what time does to them."""
