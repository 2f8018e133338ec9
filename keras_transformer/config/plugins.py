"""Plug-ins: Python code of users that registers problems, hparams, layers and models (docs/plugins.md)."""

import contextlib
import importlib
import os
import sys
import traceback
import types
from pathlib import Path

from keras_transformer.backend.loading import load_keras
from keras_transformer.config import registry
from keras_transformer.utils.errors import UserError


class MissingPlugin(UserError):
    """The plug-in does not exist."""


_loaded: dict[str, types.ModuleType] = {}  # {name of plug-in and module: module}, in the order of loading


def loaded() -> list[str]:
    """Return the names of the loaded plug-ins, in their order: absolute paths, or names of modules."""
    return list(_loaded)


def load_plugin(plugin: str | os.PathLike) -> types.ModuleType:
    """Load a plug-in, whose decorators register its names, unless it is loaded already.

    Args:
        plugin: Path of a Python file or of a folder with `__init__.py`, or else the name of a module.

    Returns:
        The module.

    Raises:
        UserError: The plug-in is missing (`MissingPlugin`), raises an exception, registers a name that is taken, or
            registers nothing. None of its names stays registered.
    """
    name, file = _find(os.fspath(plugin))
    if name in _loaded:
        return _loaded[name]
    load_keras()  # with the right backend, whatever the plug-in imports
    registry.load_catalog()
    before, entries = dict(_loaded), registry.entries()
    try:
        with registry.all_or_nothing():
            module = _import(name, file)
            if registry.entries() == entries and not any(_is_part(entry, name) for entry in entries.values()):
                raise UserError(
                    f"plug-in {name} must register a problem, hparams, a layer or a model, but registers nothing. "
                    "Decorate a class or function with @register_…(NAME)."
                )
    except (Exception, SystemExit) as error:
        _loaded.clear()
        _loaded.update(before)  # without those that this one loaded
        line = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else _line_in([name], error)
        if isinstance(error, UserError) and not line:  # not an error of the plug-in's code
            raise
        raise UserError(f"plug-in {line or name}: {_described(error)}") from error
    _loaded[name] = module
    return module


@contextlib.contextmanager
def located_errors():
    """Add a last line with the place to an unexpected exception that was raised in a plug-in's code."""
    try:
        yield
    except Exception as error:
        if line := _line_in(_loaded, error):
            error.add_note(f"error: plug-in {line}: {_described(error)}")
        raise


def _find(text):
    """Return the name of a plug-in that a run records, and its file; None for a module."""
    path = Path(text).expanduser()
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        return text, None
    file = file.resolve()
    return str(file.parent if file.name == "__init__.py" else file), file


def _import(name, file):
    if file:
        if file.name != "__init__.py" and str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # for other files there; last, so that they hide nothing
        return registry.load_file(file, name)  # a module's name may be a path, and paths do not collide
    importlib.invalidate_caches()  # the file may be new
    try:
        if all(part.isidentifier() for part in name.split(".")):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # the module lacks another one
            raise
    raise MissingPlugin(
        f"there is no plug-in {name!r}: no such Python file, no folder of that name with __init__.py, and no module "
        f"that can be imported from {Path.cwd()}"
    )


def _is_part(entry, plugin):
    """Return whether a class or a function belongs to a plug-in."""
    return f"{getattr(entry, '__module__', '')}.".startswith(f"{plugin}.")


def _line_in(plugins, error):
    """Return "FILE:LINE" of an exception's last frame in a plug-in, or None."""
    places = tuple(f"{plugin}." for plugin in plugins)
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if f"{frame.f_globals.get('__name__')}.".startswith(places)
    ]
    return lines[-1] if lines else None


def _described(error):
    """Return type and text of an exception in one line."""
    text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")
