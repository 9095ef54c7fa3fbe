"""What the server serves: one `Kind` for each group, version and resource, and the registry that finds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from fulcrum_local.apiserver.errors import Json, qualified

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subresource:
    """A path below an object, such as `status`; `kind` is what it takes and returns."""

    name: str
    kind: str
    group: str = ""
    version: str = ""
    verbs: tuple[str, ...] = ("get", "patch", "update")


SCALE: Final = Subresource(name="scale", kind="Scale", group="autoscaling", version="v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomVersion:
    """One served version of a CustomResourceDefinition."""

    open_api_v3_schema: Json
    printer_columns: tuple[Json, ...] = ()
    scale: Json | None = None
    selectable_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind in one version. Versions of one kind share `storage`, the key of their objects in the store."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    list_kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    storage: str
    has_generation: bool = False
    resets_status: bool = False
    """Writes to the main resource leave `status` alone, because there is a status subresource."""
    custom: CustomVersion | None = field(default=None, compare=False)

    @property
    def api_version(self) -> str:
        """`apps/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """`deployments.apps`: the resource as messages name it."""
        return qualified(self.plural, self.group)

    def subresource(self, name: str) -> Subresource | None:
        """The subresource called `name`, if the kind has it."""
        return next((sub for sub in self.subresources if sub.name == name), None)


class Registry:
    """Every served kind; CRDs add and remove kinds while the server runs."""

    def __init__(self, builtin: tuple[Kind, ...]) -> None:
        self._by_path: dict[tuple[str, str, str], Kind] = {(k.group, k.version, k.plural): k for k in builtin}
        self._builtin_groups = {k.group for k in builtin}
        self._crds: dict[str, tuple[Kind, ...]] = {}
        self.generation = 0
        """Grows with every change, so that what is derived from the registry (discovery, OpenAPI) can be kept."""

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind behind `/apis/<group>/<version>/.../<plural>`."""
        return self._by_path.get((group, version, plural))

    def by_kind(self, group: str, kind: str) -> Kind | None:
        """Any version of a kind; for owner references and access reviews."""
        return next((k for k in self._by_path.values() if k.group == group and k.kind == kind), None)

    def __iter__(self) -> Iterator[Kind]:
        return iter(tuple(self._by_path.values()))

    def set_custom(self, crd_name: str, kinds: tuple[Kind, ...]) -> None:
        """Serve exactly `kinds` for the CRD `crd_name`; an empty tuple stops serving it."""
        for old in self._crds.pop(crd_name, ()):
            self._by_path.pop((old.group, old.version, old.plural), None)
        if kinds:
            self._crds[crd_name] = kinds
            for new in kinds:
                self._by_path[new.group, new.version, new.plural] = new
        self.generation += 1

    def custom_names(self, group: str, excluding: str) -> set[str]:
        """Plural, singular and short names and kinds that other CRDs (or built-in kinds) of the group have taken."""
        taken: set[str] = set()
        for crd_name, kinds in self._crds.items():
            for kind in kinds:
                if kind.group == group and crd_name != excluding:
                    taken |= {kind.plural, kind.singular, kind.kind, kind.list_kind, *kind.short_names}
        return taken

    def is_builtin_group(self, group: str) -> bool:
        """Whether the group belongs to the server itself."""
        return group in self._builtin_groups
