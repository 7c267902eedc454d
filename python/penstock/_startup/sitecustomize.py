"""What `penstock run` has every Python do before its program: Penstock stands in for the safetensors library once that is imported.

`penstock run` puts this folder in front of PYTHONPATH. A sitecustomize that the interpreter would have found without it runs as well. Nothing but
a look-up at the program's first `import safetensors` is left behind; PENSTOCK_SAFETENSORS=0 leaves nothing at all.
"""

# All that runs in every Python, so it is short, and imports nothing that the interpreter has not loaded by itself.
import os
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder

_folder = os.path.dirname(os.path.abspath(__file__))


class _Door:
    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "safetensors":
            return None
        try:
            door = _door()  # type: ignore[no-untyped-call]
        except Exception:  # part of Penstock is missing: the program goes on without it
            if _Door in sys.meta_path:
                sys.meta_path.remove(_Door)
            return None
        return door.found(_Door)


def _door():  # type: ignore[no-untyped-def]
    spec = PathFinder.find_spec("_penstock_door", [_folder])  # which the program may have taken out of its path
    found = module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(found)  # type: ignore[union-attr]
    return found


if os.environ.get("PENSTOCK_SAFETENSORS") != "0":
    sys.meta_path.insert(0, _Door)
    if os.environ.get("PENSTOCK_LOG") == "summary":
        import atexit

        atexit.register(lambda: _door().report())  # type: ignore[no-untyped-call]

# The sitecustomize that stands behind this one.
_next = PathFinder.find_spec("sitecustomize", [each for each in sys.path if os.path.abspath(each) != _folder])
if _next is not None and _next.loader is not None:
    sys.modules["sitecustomize"] = module_from_spec(_next)
    _next.loader.exec_module(sys.modules["sitecustomize"])
