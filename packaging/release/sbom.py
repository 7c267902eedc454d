"""Writes the bill of materials of a release: the libraries whose code its binaries contain, as CycloneDX JSON, and validates it.

Usage: sbom.py VERSION FILE   (with cyclonedx-python-lib[json-validation]; tools/release calls it)

Versions are those on this machine: of pkg-config, of the compiler, and of the packages in the venvs that tools/wheels leaves in build/wheels.
What Penstock opens at run time if it is installed (the CUDA driver, libcufile, UCX, libcurl, libssl) is not part of a release.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "wheels"


def answer_of(*command: str) -> str | None:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def by_pkg_config(name: str) -> Callable[[], str | None]:
    return lambda: answer_of("pkg-config", "--modversion", name)


def by_venv(distribution: str) -> Callable[[], str | None]:
    """Of a package that tools/wheels installed to build with."""

    def find() -> str | None:
        for folder in sorted(WHEELS.glob(f"*/lib/python*/site-packages/{distribution}-*.dist-info")):
            return folder.name.removesuffix(".dist-info").rpartition("-")[2]
        return None

    return find


class Library(NamedTuple):
    name: str
    licence: str  # an SPDX expression
    url: str
    place: str
    version: Callable[[], str | None]
    index: str = "generic"  # the kind of its package URL


# NOTICE has the same list, which tests/tools/release_test.py compares.
LIBRARIES = (
    Library("fmt", "MIT", "https://github.com/fmtlib/fmt", "all binaries", by_pkg_config("fmt")),
    Library("liburing", "MIT OR LGPL-2.1-or-later", "https://github.com/axboe/liburing", "libpenstock.so", by_pkg_config("liburing")),
    Library("json", "MIT", "https://github.com/nlohmann/json", "the command, libcufile.so.0 and the Python package", by_pkg_config("nlohmann_json")),
    Library("CLI11", "BSD-3-Clause", "https://github.com/CLIUtils/CLI11", "the command", by_pkg_config("CLI11")),
    Library("xxHash", "BSD-2-Clause", "https://github.com/Cyan4973/xxHash", "the command", by_pkg_config("libxxhash")),
    Library("nanobind", "BSD-3-Clause", "https://github.com/wjakob/nanobind", "the Python package", by_venv("nanobind"), "pypi"),
    Library("nvidia-nvtx", "Apache-2.0 WITH LLVM-exception", "https://github.com/NVIDIA/NVTX", "the Python package", by_venv("nvidia_nvtx"), "pypi"),
    Library("libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org", "the wheels", lambda: answer_of("c++", "-dumpfullversion")),
)


def main() -> int:
    from cyclonedx.model import ExternalReference, ExternalReferenceType, XsUri
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import LicenseExpression
    from cyclonedx.output.json import JsonV1Dot6
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from packageurl import PackageURL

    def component_of(library: Library) -> Component:
        version = library.version()
        return Component(
            type=ComponentType.LIBRARY,
            bom_ref=library.name,
            name=library.name,
            version=version,
            description=f"in {library.place}",
            licenses=[LicenseExpression(library.licence)],
            purl=PackageURL(library.index, None, library.name, version),
            external_references=[ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(library.url))],
        )

    version, file = sys.argv[1], Path(sys.argv[2])
    commit = answer_of("git", "-C", str(ROOT), "log", "-1", "--format=%H %ct")
    assert commit is not None
    name, seconds = commit.split()
    root = Component(
        type=ComponentType.APPLICATION, bom_ref="penstock", name="penstock", version=version, licenses=[LicenseExpression("Apache-2.0")],
        purl=PackageURL("pypi", None, "penstock", version),
    )  # fmt: skip
    # The same for each run on a commit.
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"penstock {version} {name}"))
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", seconds)), datetime.timezone.utc)
    bom.metadata.component = root
    components = [component_of(library) for library in LIBRARIES]
    bom.components.update(components)
    bom.register_dependency(root, components)
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if problem := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        print(f"sbom: not valid by the schema of CycloneDX 1.6: {problem}", file=sys.stderr)
        return 1
    file.write_text(text + "\n")
    for component in bom.components:
        print(component.purl)
    return 0


if __name__ == "__main__":
    sys.exit(main())
