"""Test tools by their contracts: cases from schemas, declared behaviours as properties, through a gateway's lifecycle.

`deputize tool test` and `pytest_plugin.py` use it. Every call goes to a gateway like any other.
"""
