"""The engine that the contract in `fixtures/README.md` is of, as small as can be."""
