"""Translate between wire formats and `operations/gateway.py`; interfaces decide nothing."""
