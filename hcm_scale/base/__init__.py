"""Files, threads, kernels, random numbers, progress and memory, for all other folders."""
