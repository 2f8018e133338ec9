"""Tests of the package layout: imports point downwards, and there are no import cycles."""

import ast
from pathlib import Path

import pytest

from keras_transformer.config.registry import PACKAGE

LEVELS = (
    "__main__ augment average convert cost evaluate export prepare score serve train translate trees visualize",
    "server",
    "exports training",
    "decoding distributed parsing",
    "pretrained",
    "cli conversion models runs",
    "layers tasks",
    "config data",
    "backend metrics visualization",
    "utils",
)
"""Top-level commands and packages, from the highest level to the lowest. Each may import only from lower levels."""
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names.split()}
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
    if "_bundled" not in path.parts and path.parent / path.name != PACKAGE / "__init__.py"
}


def imported(path):
    """Yield the modules of this package that a file imports, including imports inside functions."""
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("keras_transformer."):
            module = node.module.removeprefix("keras_transformer.")
            for alias in node.names:
                yield f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module
        elif isinstance(node, ast.ImportFrom) and node.module == "keras_transformer":
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (
                name.removeprefix("keras_transformer.") for name in names if name.startswith("keras_transformer.")
            )


def test_levels_name_all_packages_and_commands():
    assert {name.partition(".")[0] for name in MODULES} == LEVEL.keys()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module):
    own = module.partition(".")[0]
    for other in imported(MODULES[module]):
        package = other.partition(".")[0]
        assert package == own or LEVEL[package] > LEVEL[own], f"{module} imports {other}"


def test_imports_have_no_cycle():
    arrows = {module: set(imported(path)) - {module} for module, path in MODULES.items()}
    while leaves := [module for module, targets in arrows.items() if not targets & arrows.keys()]:
        for module in leaves:
            del arrows[module]
    assert not arrows, f"these import each other: {', '.join(sorted(arrows))}"
