"""A configuration becomes stages, made once and found again."""
