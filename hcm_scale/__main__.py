"""The process behind `hcm-scale` and `python -m hcm_scale`: the command, and an end that comes at once.

Python takes a quarter of a second to take apart what torch, numba and Arrow have brought, module by module, and the
system needs none of it. What was registered for the end (`atexit`) runs; the first registered is the last to run.
"""

import atexit
import os
import sys
from typing import NoReturn

from hcm_scale.cli.main import main


def script() -> NoReturn:
    """Runs the command, and ends the process with its status."""
    ended: list[int] = []
    atexit.register(_end, ended)
    ended.append(main())
    sys.exit(ended[0])


def _end(ended: list[int]) -> None:
    """Ends at once, where the command has ended by itself and all it said is out."""
    if ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended[0])


if __name__ == "__main__":
    script()
