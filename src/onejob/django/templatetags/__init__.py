"""Filters of the templates of jobs."""
