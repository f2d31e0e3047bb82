"""How the commands read their words: argparse, with errors that `cli.py` turns into one line like all others."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that raises ValueError where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.format_usage().strip()}")


def parser(command: str, description: str | None) -> Parser:
    """The parser of `hcm-scale COMMAND`."""
    plain = argparse.RawDescriptionHelpFormatter
    return Parser(prog=f"hcm-scale {command}", description=description, formatter_class=plain, allow_abbrev=False)
