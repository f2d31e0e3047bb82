"""The SGLD chain: steps, schedule, samples, checkpoints."""
