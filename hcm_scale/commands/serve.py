"""A local page over every node of a finished run: `hcm-scale serve RUN [--port N]`, until Ctrl-C.

It answers this machine alone, at an address that it prints.
"""

from pathlib import Path

from hcm_scale.commands.arguments import parser


def main(arguments: list[str]) -> str:
    """Serves until it is interrupted; nothing is left to print."""
    words = parser("serve", __doc__)
    words.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run, such as runs/default")
    words.add_argument("--port", default="0", metavar="N", help="0, which is the default, is any free one")
    given = words.parse_args(arguments)
    if not (given.port.isascii() and given.port.isdecimal() and int(given.port) < 1 << 16):
        raise ValueError(f"--port {given.port} is not legal: a whole number from 0, any free one, to 65535")
    from hcm_scale.serve.server import serve

    serve(given.run, int(given.port))
    return ""
