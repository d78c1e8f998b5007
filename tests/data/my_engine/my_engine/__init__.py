"""The engine that the contract in `docs/contracts.md` is for, as small as can be."""
