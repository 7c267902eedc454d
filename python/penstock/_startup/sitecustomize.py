"""Runs in every Python process that `penstock run` starts, before the program: Penstock replaces safetensors, KvikIO and the copiers of
fastsafetensors when they are imported.

`penstock run` puts this folder in front of PYTHONPATH. Any sitecustomize that the interpreter would otherwise have found runs as well. Afterwards,
the only cost is a lookup at the program's first import of each library. PENSTOCK_SAFETENSORS=0, PENSTOCK_KVIKIO=0 and PENSTOCK_FASTSAFETENSORS=0
disable the replacement of one library.
"""

# This runs in every Python process, so it is short and imports only modules that the interpreter has already loaded.
import os
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder

_folder = os.path.dirname(os.path.abspath(__file__))


_variables = {"safetensors": "PENSTOCK_SAFETENSORS", "kvikio": "PENSTOCK_KVIKIO", "fastsafetensors": "PENSTOCK_FASTSAFETENSORS"}


class _Door:
    names = [name for name, variable in _variables.items() if os.environ.get(variable) != "0"]

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in _Door.names:
            return None
        try:
            door = _door()  # type: ignore[no-untyped-call]
        except Exception:  # a part of Penstock is missing: the program continues without it
            if _Door in sys.meta_path:
                sys.meta_path.remove(_Door)
            return None
        return door.found(_Door, name, path, target)


def _door():  # type: ignore[no-untyped-def]
    spec = PathFinder.find_spec("_penstock_door", [_folder])  # the program may have removed the folder from its path
    found = module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(found)  # type: ignore[union-attr]
    return found


if _Door.names:
    sys.meta_path.insert(0, _Door)
    if os.environ.get("PENSTOCK_LOG") == "summary":
        import atexit

        atexit.register(lambda: _door().report())  # type: ignore[no-untyped-call]

# Runs the sitecustomize that this one hides.
_next = PathFinder.find_spec("sitecustomize", [each for each in sys.path if os.path.abspath(each) != _folder])
if _next is not None and _next.loader is not None:
    sys.modules["sitecustomize"] = module_from_spec(_next)
    _next.loader.exec_module(sys.modules["sitecustomize"])
