"""The checks of the project's files: names, sizes, links, pages, locks, manifests. `make lint` runs them."""
