"""An import contract that import-linter does not bring: a package that only some modules may import."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class OnlyIn(Contract):
    """Keeps `package` out of every module except those of `homes`, whatever modules there will be."""

    package = fields.StringField()
    homes = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002 (the base class names it)
        """Look at every direct import of the package."""
        package = str(self.package)
        importers = graph.find_modules_that_directly_import(package) if package in graph.modules else set()
        homes = tuple(f"{home}." for home in self.homes)  # type: ignore[attr-defined]
        strangers = sorted(importer for importer in importers if not f"{importer}.".startswith(homes))
        return ContractCheck(kept=not strangers, metadata={"strangers": strangers})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name the modules that import it and should not."""
        for stranger in check.metadata["strangers"]:
            output.print_error(f"{stranger} imports {self.package}")
