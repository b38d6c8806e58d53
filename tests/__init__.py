"""Behaviour of Deputize, shown on the real parts; tests/requirements.py ties each promise to its tests."""
