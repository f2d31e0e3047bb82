"""ROOM 6, the posterior: Langevin steps, schedules, the loop that keeps parameter samples, checkpoints."""
