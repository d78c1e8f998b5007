"""Devices: which values live where, what runs on which platform, and where the host waits."""
