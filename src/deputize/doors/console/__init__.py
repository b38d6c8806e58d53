"""Pages where people see what waits for them and decide it: rendered here, read without a script, on any screen."""
