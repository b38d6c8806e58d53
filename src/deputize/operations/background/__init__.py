"""Run the background loops: worker, sweeper, reconciler, deliveries."""
