"""Captured graphs: fills and padded tails of their inputs, captures and replays."""
