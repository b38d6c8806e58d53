"""Exchange tools with other systems: as function definitions of model APIs, and as objects of the tool standard."""
