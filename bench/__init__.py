"""Throughput and memory, as ratios to a peer measured in the same run on the same data. `python -m bench --help`.

    harness  Case, Contender, Floor, Table: measure, verify, judge     page    Markdown, JSON lines and figures
    apart    one job in a process of its own, capped                   stages  the pipeline's stages as such jobs
    data     the graphs                                                one more module per theme

Results with hardware, versions, command and commit lie under results/.
"""
