-- Deliveries are taken tenant by tenant: one whose receivers are slow must not be in front of everybody else's.
create index deliveries_in_turn on deputize.deliveries (tenant, due_at) where due_at is not null;
drop index deputize.deliveries_due;

-- What is forgotten after its time, found by its time; and whether a callback has anything left to be told.
create index deliveries_over on deputize.deliveries (coalesce(delivered_at, dead_at))
    where delivered_at is not null or dead_at is not null;
create index deliveries_of_call on deputize.deliveries (tenant, call_id);
create index progress_by_time on deputize.progress (at);
