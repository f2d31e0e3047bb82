"""Parameter samples become a ranked list with p-values.

`edges` predicts the hop of every edge under every sample and keeps a running mean and variance. `kinds` has the kinds
of evidence, one file each, which give every node numbers; `evidence` adds them up, `nodes` joins both; `table` ranks
and writes; `metrics` says how good the ranking is where labels are known.
"""
