"""The versions of the shop's tables."""
