"""An import contract (`[tool.importlinter]` in pyproject.toml): files import each other in no circle.

The contracts that come with import-linter compare packages, or the children of one package; this one compares files.
Imports for type checking and inside functions count, too. `from package import name` imports `package/__init__.py`,
unless the name is that of a file in it.
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application.contract_utils import AlertLevel, remove_ignored_imports


def circles(graph: ImportGraph) -> list[tuple[str, ...]]:
    """Return a shortest circle for each import that is in one: its modules, each imports the next, the last the first.

    A circle begins with the module whose name comes first, and is listed once.
    """
    found: dict[tuple[str, ...], None] = {}
    for importer in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            back = graph.find_shortest_chain(imported, importer)
            if back is not None:
                first = back.index(min(back))
                found[back[first:] + back[:first]] = None
    return list(found)


class FileCircles(Contract):
    """No file imports itself by way of others."""

    type_name = "file_circles"
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find the circles of the graph without the ignored imports."""
        warnings = remove_ignored_imports(graph, self.ignore_imports, AlertLevel.ERROR)  # type: ignore[arg-type]
        found = circles(graph)
        return ContractCheck(kept=not found, warnings=warnings, metadata={"circles": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each circle."""
        for circle in check.metadata["circles"]:
            output.print_error(" -> ".join((*circle, circle[0])))
