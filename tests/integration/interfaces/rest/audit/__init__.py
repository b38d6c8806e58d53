"""Tests of the audit routes."""
