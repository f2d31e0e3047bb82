"""Many runs: named sweeps and tables."""
