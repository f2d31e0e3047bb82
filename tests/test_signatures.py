"""No function takes more than seven arguments by position: what travels together is one named thing."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST = 7


def is_triton(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Triton's kernels take every tensor and number by itself."""
    decorators = (ast.unparse(decorator).partition("(")[0] for decorator in function.decorator_list)
    return any(name in ("jit", "triton.jit") for name in decorators)


def num_positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@pytest.mark.parametrize("folder", ["hcm_scale", "bench"])
def test_functions__take_at_most_seven_arguments_by_position(folder):
    found, long = 0, []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_triton(node):
                found += 1
                if num_positional(node) > MOST:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} takes {num_positional(node)}")
    assert found > 100
    assert not long, "\n".join(long)
