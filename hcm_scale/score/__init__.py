"""Parameter samples become a ranked list with p-values.

`edges` predicts the hop of every edge under every sample and keeps a running mean and variance; `nodes` averages them
over each node's neighbours; `table` ranks and writes; `metrics` says how good the ranking is where labels are known.
"""
