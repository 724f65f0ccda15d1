"""The interfaces of other libraries on onejob's ledger, for programs that migrate by changing an import."""
