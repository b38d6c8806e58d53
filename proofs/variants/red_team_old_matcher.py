"""A gateway that matches patterns from outside with Python's backtracking engine, as 0.1.0 did."""

from proofs.kit.gateway_variant import serve_variant
from proofs.variants.stalls_old_matcher import use_old_matcher

if __name__ == "__main__":
    use_old_matcher()
    serve_variant(lambda gateway: gateway)
