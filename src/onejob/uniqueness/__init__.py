"""Uniqueness: which submissions are equal, and for how long."""
