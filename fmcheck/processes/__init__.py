"""The reach of a run: how a watch goes on in the processes that a test starts."""
