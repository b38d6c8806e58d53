"""Take over edited files while `deputize dev` runs: tool code at once, what changes authority after a key press."""
