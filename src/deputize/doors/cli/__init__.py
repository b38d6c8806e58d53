"""The command line: what a person types and reads. Commands import what they need when they run: help is quick."""
