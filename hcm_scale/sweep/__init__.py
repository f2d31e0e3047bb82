"""Many runs: named sweeps, searches over options, and the tables and figures gathered from their folders."""
