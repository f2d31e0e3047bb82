"""Accuracy of every method on the same graphs, the same planted anomalies and the same features. `python -m bench.accuracy --help`."""
