"""The watch over a running engine's relay buffers. It knows nothing of the linter.

Its rooms import one way: core, then relay and steps, order and graphs, device, and session on top.
`tests/test_rooms.py` holds the arrows.
"""
