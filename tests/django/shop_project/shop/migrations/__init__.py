"""The versions of the project's tables."""
