"""The use cases on top of a store."""
