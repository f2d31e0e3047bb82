"""Arrow leaves pandas alone until it is told to make something of it."""

import subprocess
import sys

import pytest


def test_leave_pandas_out__loads_it_when_it_is_asked_for():
    pytest.importorskip("pandas")
    code = (
        "import sys, numpy as np, pyarrow as pa;"
        "from hcm_scale.base.parquet import leave_pandas_out; leave_pandas_out();"
        "made = pa.table({'a': pa.array(np.arange(3))}); assert made['a'].to_numpy().tolist() == [0, 1, 2];"
        "assert 'pandas' not in sys.modules; print(made.to_pandas()['a'].sum());"
        "import pandas; print(pa.array(pandas.Series([1.0, None])).null_count)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n1\n", "")
