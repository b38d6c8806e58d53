"""Ways a contract comes in: a Python function with `@tool`, a manifest. Each ends in a `Contract`."""
