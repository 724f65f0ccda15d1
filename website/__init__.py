"""The documentation site: docs/ as pages with a navigation, a search and a reference made from the code."""
