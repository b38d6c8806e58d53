"""Obtain the credential that one attempt of a call acts with."""
