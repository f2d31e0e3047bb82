"""Accuracy of every method on the same graphs, planted anomalies and features. `python -m bench.accuracy --help`."""
