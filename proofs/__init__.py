"""Runnable experiments behind every figure we publish: `python -m proofs list`.

One module per proof, each with `NAME`, `PROMISE` and `async def prove(world) -> Verdict`;
`kit/` holds what they share.
"""
