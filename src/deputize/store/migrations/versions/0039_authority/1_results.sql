-- Who made a result: the chain of agents and the delegation they acted by. Null in rows of the previous release.
alter table deputize.results add column caller_agent text;
