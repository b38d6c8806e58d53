"""Define the formats of a transparency log: Merkle tree, tiles, signed notes, checkpoints, cosignatures and receipts.

Nothing here reads a database, and nothing but `cryptography` is needed, so that a verifier can use the same code
without the gateway.
"""
