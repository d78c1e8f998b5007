"""Files: read and written whole, and TOML read into typed structs."""
