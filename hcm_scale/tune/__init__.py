"""`sweep=optuna`: a search for good settings. What is searched, by which objective, and the study that drives it."""
