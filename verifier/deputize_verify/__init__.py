"""Verify receipts of a Deputize gateway offline, without the gateway."""
