"""Many runs: named sweeps, searches and tables."""
