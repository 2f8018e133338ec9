"""Modules of `training` import each other in one direction only, also inside functions."""

import ast
import graphlib

from keras_transformer.config.registry import PACKAGE


def test_training_has_no_import_cycle():
    folder = PACKAGE / "training"
    graph = {}
    for path in folder.glob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        graph[path.stem] = {node.module.rpartition(".")[2] for node in imports if ".training." in f"{node.module}"}
    assert graph["trainer"] > {"memory", "network"}
    list(graphlib.TopologicalSorter(graph).static_order())
