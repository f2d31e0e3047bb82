"""Compiles what runs need, which the first run would otherwise do: `hcm-scale warm`, once after an installation."""

from hcm_scale.commands.arguments import parser


def main(arguments: list[str]) -> str:
    """What was compiled, in words."""
    parser("warm", __doc__).parse_args(arguments)
    from hcm_scale.warm import warm

    return warm()
