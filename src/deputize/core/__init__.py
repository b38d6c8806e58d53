"""The words of the house: contract, call, caller, outcome, errors, events, canonical form, settings, telemetry names.

Pure: nothing here does I/O, and every other room stands on it.
"""
