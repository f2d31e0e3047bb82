"""The process of a command ends with its status, and does not take itself apart."""

import subprocess
import sys

import pytest

CODE = """
import atexit, sys
from hcm_scale import __main__, cli

class Kept:
    def __del__(self):
        print("taken apart")

kept, whole = Kept(), cli.main

def main():
    atexit.register(print, "at exit")
    return whole()

__main__.main, sys.argv = main, ["hcm-scale", *sys.argv[1:]]
__main__.script()
"""


@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("rum", 2)])
def test_script__ends_at_once_with_the_status_of_the_command(word, status):
    done = subprocess.run([sys.executable, "-c", CODE, word], capture_output=True, text=True)
    assert done.returncode == status
    assert done.stdout.endswith("at exit\n")
    assert bool(done.stderr) == bool(status)
