"""Kinds of evidence, one file each: its numbers, what they weigh, and what is said of them; `all.py` lists them."""
