"""Run the background loops: worker, sweeper, retention, reconciler, deliveries."""
