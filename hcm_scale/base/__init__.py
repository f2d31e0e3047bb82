"""Files, threads, kernels, random numbers, progress, memory."""
