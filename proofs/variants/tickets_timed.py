"""The gateway as it is, that tells how long its sweeper takes for each batch of tickets."""

from proofs.waiting.timed import Timed, serve_with

if __name__ == "__main__":
    serve_with(Timed)
