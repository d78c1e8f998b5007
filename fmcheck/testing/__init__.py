"""What a test under the pytest plugin may ask of fmcheck, and what becomes of what was found."""
