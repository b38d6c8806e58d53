-- Beside tools, servers have resources, templates of resources and prompts, and methods to get at them. Of these only the
-- methods are registered. A gateway of the release before reads such rows and holds what it does not know as gone, which
-- the next look of a newer one closes again. Started where `tools` leaves tools out, it withdraws the methods as well:
-- then they wait for review.

alter table deputize.server_pins
    drop constraint server_pins_item_check,
    drop constraint server_pins_check,
    add constraint server_pins_item_check
        check (item = 'instructions' or item ~ '^(tool|resource|template|prompt|method):.'),
    add constraint server_pins_registered
        check ((item like 'tool:%' or item like 'method:%') = (tool is not null) and (tool is null) = (version is null));

alter table deputize.server_changes
    drop constraint server_changes_item_check,
    add constraint server_changes_item_check
        check (item = 'instructions' or item ~ '^(tool|resource|template|prompt|method):.');
