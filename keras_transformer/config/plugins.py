"""Plug-ins: user-written Python modules that register problems, hparams, layers and models (docs/plugins.md)."""

import contextlib
import importlib
import importlib.machinery
import logging
import os
import re
import sys
import traceback
import types
from pathlib import Path

from keras_transformer.backend.loading import load_keras
from keras_transformer.config import registry
from keras_transformer.utils.errors import UserError


class MissingPlugin(UserError):
    """Error for a plug-in that does not exist."""


logger = logging.getLogger(__name__)

_loaded: dict[str, types.ModuleType] = {}  # by name, in the order of loading
_code: dict[str, bytes] = {}  # contents of the loaded files, by name


def loaded() -> list[str]:
    """Return the names of the loaded plug-ins in loading order: absolute paths or names of modules."""
    return list(_loaded)


def load_plugin(plugin: str | os.PathLike) -> types.ModuleType:
    """Load a plug-in, which registers its content with decorators.

    If the plug-in is already loaded, do nothing, except for a warning if its file has changed.

    Args:
        plugin: Path of a Python file, path of a folder with `__init__.py`, or name of a module.

    Returns:
        The module.

    Raises:
        UserError: The plug-in is missing (`MissingPlugin`), raises an exception, registers a name that is already
            registered, or registers nothing. In each case, the function undoes all registrations of the plug-in.
    """
    name, file = _find(os.fspath(plugin))
    if name in _loaded:
        if file and file.read_bytes() != _code[name]:
            logger.warning(f"plug-in {name} has changed since it was loaded; restart Python to load the new version")
        return _loaded[name]
    load_keras()  # sets the backend before the plug-in imports Keras
    registry.load_catalog()
    before, entries = dict(_loaded), registry.entries()
    try:
        with registry.all_or_nothing(), _modules_kept_on_success(name):
            code = file.read_bytes() if file else b""
            module = _import(name, file)
            if registry.entries() == entries and not any(_is_part(entry, name) for entry in entries.values()):
                raise UserError(
                    f"plug-in {name} must register a problem, hparams, a layer or a model, but registers nothing. "
                    "Decorate a class or function with @register_…(NAME)."
                )
    except (Exception, SystemExit) as error:
        _loaded.clear()
        _loaded.update(before)  # also removes plug-ins that the failed plug-in has loaded
        line = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else _line_in([name], error)
        if isinstance(error, UserError) and not line:  # not raised by the code of the plug-in
            raise
        raise UserError(f"plug-in {line or name}: {_described(error)}") from error
    _loaded[name], _code[name] = module, code
    return module


def is_local(plugin):
    """Return whether a plug-in name from a run may refer to a file in the working directory.

    Such a file may have come from an untrusted source together with the run. An absolute path is safe unless it
    contains a symbolic link, such as /proc/self/cwd, because the sender of a run usually cannot know where the
    recipient stores the run. Runs record paths without symbolic links.
    """
    if os.path.isabs(plugin):
        return os.path.realpath(plugin) != plugin
    importlib.invalidate_caches()
    module = plugin.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(module, [os.getcwd()])  # also finds compiled modules
    return os.sep in plugin or plugin.startswith("~") or found is not None or Path(plugin).exists()


@contextlib.contextmanager
def located_errors():
    """Add a note with file and line to an unexpected exception raised by the code of a plug-in."""
    try:
        yield
    except Exception as error:
        if line := _line_in(_loaded, error):
            error.add_note(f"error: plug-in {line}: {_described(error)}")
        raise


@contextlib.contextmanager
def _modules_kept_on_success(name):
    """If a `with` block fails, remove new modules that belong to a plug-in, so that the next import runs them again.

    These are the modules of the plug-in with the given name, of plug-ins that it has loaded, and modules that have
    registered anything.
    """
    known, loaded_before, before = set(sys.modules), set(_loaded), registry.entries()
    try:
        yield
    except BaseException:
        new = [entry for key, entry in registry.entries().items() if before.get(key) is not entry]
        owners = {name, *(_loaded.keys() - loaded_before), *(getattr(entry, "__module__", None) for entry in new)}
        for module in set(sys.modules) - known:
            if module in owners or module.startswith(f"{name}."):
                del sys.modules[module]
        raise


def _find(text):
    """Return the name under which runs record a plug-in, and its file. The file is None for an importable module."""
    path = Path(os.path.expanduser(text))
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        return text, None
    file = file.resolve()
    return str(file.parent if file.name == "__init__.py" else file), file


def _import(name, file):
    if file:
        if file.name != "__init__.py" and str(file.parent) not in sys.path:
            # Let the plug-in import files from its folder. At the end of sys.path, the folder shadows no other modules.
            sys.path.append(str(file.parent))
        return registry.load_file(file, name)  # the path serves as a unique module name
    importlib.invalidate_caches()  # otherwise, Python may overlook a new file
    try:
        if all(part.isidentifier() for part in name.split(".")):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # an import inside the module failed
            raise
    raise MissingPlugin(
        f"plug-in {name!r} does not exist: it is neither a Python file, nor a folder with __init__.py, nor a module "
        f"that can be imported from {Path.cwd()}"
    )


def _is_part(entry, plugin):
    """Return whether the plug-in defines `entry`, a class or function."""
    return f"{getattr(entry, '__module__', '')}.".startswith(f"{plugin}.")


def _line_in(plugins, error):
    """Return "FILE:LINE" of the innermost traceback frame that is in a plug-in, or None."""
    places = tuple(f"{plugin}." for plugin in plugins)
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if f"{frame.f_globals.get('__name__')}.".startswith(places)
    ]
    return lines[-1] if lines else None


def _described(error):
    """Return the type and message of an exception in one line."""
    text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    text = re.sub(r"\x1b\[\d+m", "", text)  # Keras prints the message of an exception in a layer in bold
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")
