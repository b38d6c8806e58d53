"""Read pages as a browser shows them, and act on them where a person agreed: `[builtin.browser]`."""
