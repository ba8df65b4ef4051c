"""Write README's table of guarantees, from the declarations that the code refuses by: `python -m scripts.guarantees`."""

from __future__ import annotations

from pathlib import Path

from shardrun.db.forms import table

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- begin: written by python -m scripts.guarantees -->"
END = "<!-- end: written by python -m scripts.guarantees -->"


def written(readme: str) -> str:
    """Put the table between its marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md has no lines {BEGIN} and {END}")
    return f"{before}{begin}\n{chr(10).join(table())}\n{end}{after}"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
