"""Measure the source of a Python file: CPU-bound work of some milliseconds, and what it finds is worth a look."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)

BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
    ast.Assert,
)

LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
"""Tokens that are no more than white space."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What one file holds: counts, the longest function in lines, and the two maxima over its functions."""

    line_count: int  # `lines` is a word of MariaDB's own
    tokens: int
    comments: int
    classes: int
    functions: int
    longest_function: int
    deepest_nesting: int
    highest_complexity: int


def measure(source: str) -> Measures:
    """Parse and measure a file's text; raises `SyntaxError`."""
    shape = _Shape(ast.parse(source))
    tokens = [token.type for token in tokenize.generate_tokens(io.StringIO(source).readline)]
    return Measures(
        line_count=len(source.splitlines()),
        tokens=sum(kind not in LAYOUT and kind != tokenize.COMMENT for kind in tokens),
        comments=tokens.count(tokenize.COMMENT),
        classes=shape.classes,
        functions=len(shape.lengths),
        longest_function=max(shape.lengths, default=0),
        deepest_nesting=shape.deepest,
        highest_complexity=max(shape.ways, default=0),
    )


class _Shape:
    """Walks a tree once; without recursion, since an expression may be very deep.

    `ways` counts the ways through each function (McCabe): one, and one more for each branch and each `and` or `or` in it.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.classes = 0
        self.deepest = 0
        self.lengths: list[int] = []
        self.ways: list[int] = []
        left: list[tuple[ast.AST, int, int | None]] = [(tree, 0, None)]  # node, blocks around it, function around it
        while left:
            node, depth, function = left.pop()
            if isinstance(node, FUNCTIONS):
                function = len(self.ways)
                self.ways.append(1)
                self.lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
            elif function is not None:
                self.ways[function] += _branches(node)
            self.classes += isinstance(node, ast.ClassDef)
            depth += isinstance(node, BLOCKS)
            self.deepest = max(self.deepest, depth)
            left += [(child, depth, function) for child in ast.iter_child_nodes(node)]


def _branches(node: ast.AST) -> int:
    return len(node.values) - 1 if isinstance(node, ast.BoolOp) else int(isinstance(node, BRANCHES))
