"""What commands import, and what they leave out."""

import subprocess
import sys

import pytest


def test_leave_pandas_out__loads_it_when_it_is_asked_for():
    pytest.importorskip("pandas")
    code = (
        "import sys, numpy as np, pyarrow as pa;"
        "from hcm_scale.cli.imports import leave_pandas_out; leave_pandas_out();"
        "made = pa.table({'a': pa.array(np.arange(3))}); assert made['a'].to_numpy().tolist() == [0, 1, 2];"
        "assert 'pandas' not in sys.modules; print(made.to_pandas()['a'].sum());"
        "import pandas; print(pa.array(pandas.Series([1.0, None])).null_count)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n1\n", "")


def test_kernel__that_was_compiled_is_loaded_without_the_compiler():
    code = (
        "import sys, numpy as np; from hcm_scale.score.edge_index import edge_index;"
        "edge_index(np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], np.int32));"
        "print(*{'numba.np.linalg', 'numba.typed.typeddict'} & sys.modules.keys())"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
