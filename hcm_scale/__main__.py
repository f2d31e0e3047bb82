"""The process of `hcm-scale` and `python -m hcm_scale`: runs the command and exits at once.

Python takes a quarter of a second to tear down torch, numba and Arrow module by module, and nothing needs it. Functions
registered with `atexit` still run: `_exit_now` is registered first, and so runs last.
"""

import atexit
import os
import sys
from typing import NoReturn

from hcm_scale.cli.main import main


def script() -> NoReturn:
    status: list[int] = []
    atexit.register(_exit_now, status)
    status.append(main())
    sys.exit(status[0])


def _exit_now(status: list[int]) -> None:
    """Skips the teardown if the command returned; after an exception `status` is empty, and Python ends as usual."""
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status[0])


if __name__ == "__main__":
    script()
