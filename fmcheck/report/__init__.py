"""How findings are shown. Reports know `fmcheck.finding` alone."""
