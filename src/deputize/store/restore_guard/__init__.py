"""Notice a database that went back in time: what was committed to it is remembered outside of it."""
