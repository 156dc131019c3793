"""Touchstone."""
