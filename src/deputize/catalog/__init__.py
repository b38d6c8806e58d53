"""Hold the catalog of tools: import, admit, version, compile, register and search contracts.

Uses `store` and `core`; `lifecycle` and `operations` use it. It imports none of its sibling packages.
"""
