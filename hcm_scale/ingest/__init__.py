"""Readers of users' data, which check it and write graph folders; the public functions are in `readers`."""
