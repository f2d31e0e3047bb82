"""Many runs: named sweeps, searches, tables and figures."""
