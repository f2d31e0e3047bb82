"""The chain alone: Langevin steps, schedules, the loop that keeps parameter samples, checkpoints."""
