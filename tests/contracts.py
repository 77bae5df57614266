"""Import contracts of the project's own, for import-linter."""

from typing import Any

from importlinter import Contract, ContractCheck, fields, output


class Doors(Contract):
    """Packages are entered by their door: other rooms import from `root.room`, never from inside it."""

    root = fields.StringField()

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        """Look at every import from one room into the inside of another."""
        root = str(self.root)
        around = sorted(
            (importer, imported)
            for importer in graph.modules
            for imported in graph.find_modules_directly_imported_by(importer)
            if imported.startswith(f"{root}.") and _room(imported, root) != _room(importer, root)
            for found in graph.get_import_details(importer=importer, imported=imported)
            if f"{root}.{_room(imported, root)}." in found["line_contents"]
        )
        return ContractCheck(kept=not around, metadata={"around": around})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """List the imports that go around a door."""
        for importer, imported in check.metadata["around"]:
            output.print_error(f"{importer} imports {imported}: import from its package instead")


def _room(module: str, root: str) -> str:
    return module.removeprefix(f"{root}.").split(".")[0]
