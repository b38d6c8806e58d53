"""Send events to other systems: `publisher.py` follows the logs, the sinks speak to receivers."""
