"""Plug-ins: Python code of a user's own that registers problems, hparams, layers and models (docs/plugins.md)."""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
import types
from pathlib import Path
from typing import NamedTuple

from keras_transformer.backend.loading import load_keras
from keras_transformer.config import registry
from keras_transformer.utils.errors import UserError

NAMES_KERAS = re.compile(rb"\bkeras\b|\btensorflow\b|\bjax\b|\bkeras_transformer\.(layers|models|training|decoding)\b")


class MissingPlugin(UserError):
    """There is no such plug-in."""


class Plugin(NamedTuple):
    """Where a plug-in is.

    Attributes:
        name: What a run records: an absolute path, or the name of a module.
        module: Name of its module in `sys.modules`.
        place: Its file, or the folder of its package: what is called its own code in an error.
        by_path: Whether it is loaded by path.
    """

    name: str
    module: str
    place: Path
    by_path: bool

    def owns(self, file):
        """Whether `file` is part of the plug-in."""
        return Path(file).resolve().is_relative_to(self.place)


_loaded: dict = {}  # {file: Plugin}, in the order of loading


def loaded():
    """Returns the names of the plug-ins that were loaded, in their order: absolute paths, or names of modules."""
    return [plugin.name for plugin in _loaded.values()]


def load_plugin(plugin: str | os.PathLike) -> types.ModuleType:
    """Loads a plug-in, unless it is loaded already: its decorators register what it brings.

    Args:
        plugin: Path of a Python file, or of a folder with `__init__.py`; or else the name of a module.

    Returns:
        Its module.

    Raises:
        UserError: There is no such plug-in (`MissingPlugin`), or it raised an exception or registered a name that
            is taken. All names that it had registered are taken out again, so that it can be mended and loaded.
    """
    found = _find(str(plugin))
    registry.load_catalog()  # first, so that a name that is taken is the plug-in's mistake
    modules, path, before = set(sys.modules), list(sys.path), dict(_loaded)
    try:
        with registry.all_or_nothing():
            return _load(found)
    except BaseException as error:
        others = [other for file, other in _loaded.items() if file not in before]  # loaded by this one
        _loaded.clear()
        _loaded.update(before)
        sys.path[:] = path
        for failed in (found, *others):
            _forget(failed, modules)
        if not isinstance(error, Exception | SystemExit):
            raise
        line = _line_in([found], error)
        if isinstance(error, UserError) and not line:  # it is not the plug-in's code that is wrong
            raise
        raise UserError(f"plug-in {line or found.name}: {_described(error)}") from error


@contextlib.contextmanager
def located_errors():
    """Gives an unexpected exception that was raised in a plug-in's code a last line that says where."""
    try:
        yield
    except Exception as error:
        if line := _line_in(_loaded.values(), error):
            error.add_note(f"error: plug-in {line}: {_described(error)}")
        raise


def _find(text):
    """Returns the `Plugin` that a path or a module's name stands for."""
    path = Path(text).expanduser()
    if (path / "__init__.py").is_file():
        path /= "__init__.py"
    if path.is_file():
        path = path.resolve()
        place = path.parent if path.name == "__init__.py" else path
        # Private, and another for each place: two files of the same name do not collide.
        digest = hashlib.sha256(str(place).encode()).hexdigest()[:8]
        return Plugin(str(place), f"_keras_transformer_plugin_{place.stem}_{digest}", place, by_path=True)
    importlib.invalidate_caches()  # the file may have been written a moment ago
    top, dot, _ = text.partition(".")
    if not text.endswith(".py") and all(part.isidentifier() for part in text.split(".")):
        with contextlib.suppress(ValueError):  # __main__
            spec = importlib.util.find_spec(top)
            if spec and (spec.origin or dot):  # a folder without __init__.py has no origin
                folders = spec.submodule_search_locations
                return Plugin(text, text, Path(*folders if folders else [spec.origin]).resolve(), by_path=False)
    raise _missing(text)


def _missing(text):
    return MissingPlugin(
        f"there is no plug-in {text!r}: no such Python file, no folder of that name with __init__.py, and no module "
        f"that can be imported from {Path.cwd()}"
    )


def _load(plugin):
    """Imports a plug-in; returns its module."""
    if plugin.by_path:
        file = plugin.place / "__init__.py" if plugin.place.is_dir() else plugin.place
    else:
        file = Path(_module_file(plugin.name)).resolve()
    if file in _loaded:  # perhaps under its other name
        return sys.modules[_loaded[file].module]
    if file.is_file() and NAMES_KERAS.search(file.read_bytes()):
        load_keras()  # before the plug-in does: with the right backend, and quietly
    if not plugin.by_path:
        module = importlib.import_module(plugin.name)
    else:
        folder = str(plugin.place.parent)
        if plugin.place.is_file() and folder not in sys.path:
            sys.path.append(folder)  # for files beside it; last, so that it hides nothing
        module = registry.load_file(file, plugin.module)
    _loaded[file] = plugin
    return module


def _module_file(name):
    """Returns the file of a module, whose parents are imported."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a parent lacks something else
        spec = None
    if spec is None or spec.origin is None:
        raise _missing(name)
    return spec.origin


def _forget(plugin, modules):
    """Takes a failed plug-in, and what it imported from its own folder, out of `sys.modules`: it may be mended.

    Args:
        plugin: The `Plugin`.
        modules: Names of the modules that had been imported before.
    """
    folder = plugin.place.parent
    for name in set(sys.modules) - modules:
        file, parts = getattr(sys.modules[name], "__file__", None), name.split(".")
        beside = (
            file
            and Path(file).with_suffix("") in (folder.joinpath(*parts), folder.joinpath(*parts, "__init__"))
            and folder.name != "site-packages"
            and parts[0] != __package__
        )
        if beside or f"{name}.".startswith(f"{plugin.module}."):
            del sys.modules[name]


def _line_in(plugins, error):
    """Returns "FILE:LINE" of the innermost frame of an exception that lies in one of the plug-ins, or None."""
    plugins = list(plugins)
    if isinstance(error, SyntaxError) and error.lineno and Path(error.filename or "").is_file():
        return f"{error.filename}:{error.lineno}" if plugins else None
    while error is not None:
        frames = [
            f"{frame.f_code.co_filename}:{line}"
            for frame, line in traceback.walk_tb(error.__traceback__)
            if any(plugin.owns(frame.f_code.co_filename) for plugin in plugins)
        ]
        if frames:
            return frames[-1]
        error = error.__cause__ or error.__context__  # a backend may raise its own in place of the plug-in's
    return None


def _described(error):
    """Returns type and text of an exception in one line."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(re.sub(r"\x1b\[\d*m", "", text).split())  # Keras prints in bold
    if isinstance(error, UserError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
