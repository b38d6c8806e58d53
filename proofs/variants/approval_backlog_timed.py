"""The gateway as it is, that tells how long its sweeper takes for each batch of approval requests."""

from proofs.approval_backlog.timed_escalation import TimedEscalation, serve_with_class

if __name__ == "__main__":
    serve_with_class(TimedEscalation)
