"""Serve calls over gRPC: `deputize_v1.proto` is the contract, and each method translates to a method of the gateway."""
