"""Notify approvers."""
