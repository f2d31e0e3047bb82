"""The names that options choose from, and bounds, for the configuration and for the packages that implement them.

Plain tuples, because the configuration is read before anything heavy is imported. A package with a function for each
name has a dict with the same keys; `tests/test_config.py` compares them.
"""

from typing import Literal, get_args

FAMILIES = ("community", "rmat", "grid")
ID_TYPES = ("auto", "text", "integer")
DATES = ("auto", "day-first", "month-first")
POLICIES = {
    "unknown": ("error", "drop", "add"),
    "repeated": ("error", "first"),
    "nonfinite": ("error", "zero", "mean"),
    "featureless": ("error", "degree"),
    "edge_attributes": ("auto", "all", "none"),
}
SCALINGS = ("auto", "none", "log1p", "normal")
GAP_SUFFIX = " is null"  # the name of a column that is 1 where NAME, NAME=value or NAME#bucket has no value ends so
NO_COLUMN = 2.0  # in such a column, where no node of this node's type has a value, or edges alone name it: no gap
VECTOR = r"^(.+)\[(\d+)\]$"  # the name of a place in a vector: `text[0]`, `text[1]`, ... are one attribute, text
ONCE = "partners of one row"  # such an attribute, of which AS_END follows
AS_END = ", as "  # in the name of an attribute that is made of the edge table's rows: `rows, as payer`
ROWS, EITHER_END = f"rows{AS_END}", "either end"  # the first is 0 of a node that is never at this end
DEGREE = "log1p(degree)"  # the one attribute of a graph that has none of its own, with graph.featureless=degree
SIMILARITIES = ("jaccard", "cosine", "euclidean")  # a kernel of features/purify.py knows the order
BACKENDS = ("numba", "torch_sparse")
KERNELS = ("psgld", "sgld", "sgd", "adam")
SCHEDULES = ("constant", "polynomial")
Hop = Literal["expected", "argmax"]
HOPS = get_args(Hop)
PRECISIONS = ("auto", "float32", "bfloat16")
CASE_CHANGES = ("merge", "apart", "out", "in")  # that people make
RANKINGS = ("score", "strange", "ahp", "hav")
MODEL_SIZES = {"num_classes": (2, 16), "num_layers": (1, 16), "width": (1, 8_192), "head_width": (1, 8_192)}
