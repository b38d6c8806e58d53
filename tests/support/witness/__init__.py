"""A witness of logs that shares no code with Deputize: `witness.go`, built and run for a test."""
