"""Uniqueness: which submissions are equal, for how long, and how duplicates are handled."""
