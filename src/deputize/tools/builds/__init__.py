"""Build, test, lint and typecheck what agents wrote, by commands that the operator names: `[builtin.build]`."""
