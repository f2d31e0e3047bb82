"""Throughput and memory, as ratios to a peer measured in the same run on the same data. `python -m bench --help`."""
