-- Until when the service asked not to be called, as any gateway heard it.
alter table deputize.circuit_breakers add column paused_until timestamptz;
