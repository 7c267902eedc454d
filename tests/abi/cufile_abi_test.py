#!/usr/bin/env python3
"""Holds our cufile.h and libcufile.so.0 against NVIDIA's.

1. Our header compiles alone as C11 and C++17, with and without a cuda.h, before and behind it.
2. What cufile_probe.c prints of it equals the recorded facts: cufile_1_17.facts was printed from NVIDIA's header of 1.17, and
   cufile_1_20_additions.facts from that of 1.20.
3. The library exports the functions of these facts, its marker and nothing else, without symbol versions, under NVIDIA's SONAME.
4. Where NVIDIA's own header and library can be had (from PyPI, or installed on this machine), 2 and 3 are repeated with them.

Usage: cufile_abi_test.py --cc CC --cxx CXX --header-folder DIR [--library LIBCUFILE] [--nm NM] [--readelf READELF]
                          [--cache DIR] [--no-download]
Exits with 1 on a difference, with 77 when nothing could be compared. A half that was left out is named, with the reason.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
WHEELS = {"1.17": "1.17.1.22", "1.20": "1.20.0.107"}
SKIPPED = 77

# What the CUDA toolkit's header says of the two types that cuFile uses.
CUDA_H = """#ifndef STAND_IN_CUDA_H
#define STAND_IN_CUDA_H
#define CUDA_VERSION 13000
typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_UNKNOWN = 999 } CUresult;
typedef struct CUstream_st* CUstream;
#endif
"""

USE = """int use(void);
int use(void) {
  CUfileError_t error = {CU_FILE_SUCCESS, (CUresult)0};
  CUstream stream = 0;
  return IS_CUDA_ERR(error) || stream != 0 || IS_CUFILE_ERR(-5001);
}
"""

# The library's own source defines both names of the close function.
DEFINES_BOTH_CLOSES = """#include <cufile.h>
#undef cuFileDriverClose
CUfileError_t cuFileDriverClose(void) { CUfileError_t ok = {CU_FILE_SUCCESS, (CUresult)0}; return ok; }
CUfileError_t cuFileDriverClose_v2(void) { return cuFileDriverClose(); }
"""


class Report:
    def __init__(self):
        self.compared = 0
        self.failures = 0

    def check(self, what, problems):
        self.compared += 1
        self.failures += bool(problems)
        print(f"{'differs' if problems else 'ok     '}  {what}")
        for problem in problems[:20]:
            print(f"         {problem}")
        if len(problems) > 20:
            print(f"         and {len(problems) - 20} more")

    @staticmethod
    def left_out(what, why):
        print(f"skipped  {what}: {why}")


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def check_compiles(arguments, report, folder):
    """Our header on its own, and around a cuda.h that is found on the path or only by its full name."""
    on_path = folder / "on_path"
    elsewhere = folder / "elsewhere"
    for place in (on_path, elsewhere):
        place.mkdir()
        (place / "cuda.h").write_text(CUDA_H)
    sources = {
        "alone": ("#include <cufile.h>\n" + USE, []),
        "twice": ("#include <cufile.h>\n#include <cufile.h>\n" + USE, []),
        "finds cuda.h": ("#include <cufile.h>\n" + USE, [on_path]),
        "before cuda.h": ("#include <cufile.h>\n#include <cuda.h>\n" + USE, [on_path]),
        "behind cuda.h": ("#include <cuda.h>\n#include <cufile.h>\n" + USE, [on_path]),
        "behind a cuda.h off the path": (f'#include "{elsewhere}/cuda.h"\n#include <cufile.h>\n' + USE, []),
        "both names of close can be defined": (DEFINES_BOTH_CLOSES, []),
    }
    for what, (source, includes) in sources.items():
        for compiler, language, standard in ((arguments.cc, "c", "c11"), (arguments.cxx, "c++", "c++17")):
            (folder / "source").write_text(source)
            flags = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fvisibility=hidden", "-fsyntax-only", "-x", language, f"-std={standard}"]
            flags += [f"-I{arguments.header_folder}"] + [f"-isystem{include}" for include in includes]
            result = run(compiler, *flags, folder / "source")
            report.check(f"cufile.h as {standard}, {what}", result.stderr.splitlines() if result.returncode else [])


def facts_of(arguments, folder, include_flags, additions):
    """What the probe prints with the header that include_flags lead to: a dictionary, or None and the compiler's words."""
    program = folder / "probe"
    flags = ["-std=gnu11", "-DCUFILE_PROBE_ADDITIONS"] if additions else ["-std=gnu11"]
    built = run(arguments.cc, *flags, *include_flags, HERE / "cufile_probe.c", "-o", program)
    if built.returncode:
        return None, built.stderr.splitlines()
    return parsed(run(program).stdout), []


def parsed(text):
    return dict(line.split("=", 1) for line in text.splitlines())


def differences(theirs, ours):
    found = [f"{name}: {theirs[name]}, ours {ours.get(name, 'missing')}" for name in theirs if ours.get(name) != theirs[name]]
    return found + [f"{name}: ours only" for name in ours if name not in theirs]


def recorded(version):
    name = "cufile_1_17.facts" if version == "1.17" else "cufile_1_20_additions.facts"
    return parsed((HERE / name).read_text())


def check_facts(arguments, report, folder):
    for version in WHEELS:
        ours, problems = facts_of(arguments, folder, [f"-I{arguments.header_folder}"], version != "1.17")
        report.check(f"our header and the recorded facts of {version}", problems or differences(recorded(version), ours))


def function_names():
    names = {name.split()[1] for version in WHEELS for name in recorded(version) if name.startswith("function ")}
    return names | {"cuFileDriverClose_v2"}


# By which Penstock's direct path knows that this is not NVIDIA's library (src/path/cufile_library.cc).
MARKER = "penstock_cufile_marker"
# KvikIO's C++ library calls this one of ours if `penstock run` has preloaded our library (src/cufile/kvikio.cc).
OF_KVIKIO = "_ZN6kvikio17run_udev_readableEv"
OF_DIRECT_IO = "penstock_print_error"  # libpenstock_direct_io.so calls it


def exported(arguments, library):
    """(symbol type, name) of what a library defines for others; the name carries @version where there is one."""
    lines = run(arguments.nm, "--dynamic", "--defined-only", library).stdout.splitlines()
    return [tuple(line.split()[-2:]) for line in lines]


def check_library(arguments, report):
    library = arguments.library
    symbols = exported(arguments, library)
    names = {name for _, name in symbols}
    wanted = function_names() | {MARKER, OF_KVIKIO, OF_DIRECT_IO}
    report.check("functions that our library lacks", sorted(wanted - names))
    report.check("names that our library should not export", sorted(names - wanted))
    report.check("exports that are no functions", [f"{kind} {name}" for kind, name in symbols if kind != "T"])
    versions = run(arguments.readelf, "--version-info", "--wide", library).stdout
    report.check("symbol versions of our own", [line for line in versions.splitlines() if "Version definition" in line])
    dynamic = run(arguments.readelf, "--dynamic", "--wide", library).stdout
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    report.check("SONAME", [] if soname == ["libcufile.so.0"] else [f"libcufile.so.0, ours {soname}"])


def unpacked_wheel(version, cache):
    """The folder of NVIDIA's wheel, downloaded once; None and the reason where that does not work."""
    wheel_version = WHEELS[version]
    folder = cache / f"nvidia-cufile-{wheel_version}"
    if folder.is_dir():
        return folder, ""
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "0", "--timeout", "15", "download", "--quiet"]
        try:
            done = subprocess.run(
                command + ["--no-deps", "--only-binary=:all:", f"nvidia-cufile=={wheel_version}", "--dest", scratch],
                capture_output=True, text=True, timeout=90)
        except subprocess.TimeoutExpired:
            return None, "pip download took longer than 90 s"
        wheels = list(pathlib.Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            return None, "pip download: " + (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(pathlib.Path(scratch) / "unpacked")
        os.rename(pathlib.Path(scratch) / "unpacked", folder)
    return folder, ""


def installed_header(version):
    """cufile.h of a CUDA toolkit on this machine, if the library beside it says that it is of this version."""
    roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")]
    roots += [str(root) for root in sorted(pathlib.Path("/usr/local").glob("cuda*"))] + ["/usr"]
    for root in (pathlib.Path(root) for root in roots if root):
        for header in [root / "include/cufile.h", *root.glob("targets/*/include/cufile.h")]:
            libraries = [*header.parent.parent.glob("lib*/libcufile.so.*"), *header.parent.parent.glob("lib/*/libcufile.so.*")]
            if header.is_file() and any(path.name.startswith(f"libcufile.so.{version}.") for path in libraries):
                return header
    return None


def nvidias(arguments, version, cache):
    """NVIDIA's header and library of a version: (header, library or None), or None and the reason."""
    header = installed_header(version)
    if header:
        library = next(header.parent.parent.glob("lib*/libcufile.so.0"), None)
        return (header, library), ""
    if arguments.no_download and not (cache / f"nvidia-cufile-{WHEELS[version]}").is_dir():
        return None, "not installed here, and --no-download was given"
    folder, why = unpacked_wheel(version, cache)
    if not folder:
        return None, f"not installed here; {why}"
    return (next(folder.rglob("cufile.h")), next(folder.rglob("libcufile.so.0"), None)), ""


def check_against_nvidia(arguments, report, folder, version, cache):
    found, why = nvidias(arguments, version, cache)
    if not found:
        report.left_out(f"comparison with NVIDIA's own header and library of {version}", why)
        return
    header, library = found
    additions = version != "1.17"
    cuda_h = folder / f"cuda_{version}"
    cuda_h.mkdir()
    (cuda_h / "cuda.h").write_text(CUDA_H)
    theirs, problems = facts_of(arguments, folder, [f"-isystem{cuda_h}", f"-isystem{header.parent}"], additions)
    if not problems:
        ours, problems = facts_of(arguments, folder, [f"-I{arguments.header_folder}"], additions)
    report.check(f"our header and NVIDIA's of {version}", problems or differences(theirs, ours))
    if not library or not arguments.library:
        report.left_out(f"comparison with the exports of NVIDIA's library of {version}", "one of the two libraries is missing")
        return
    declared = set(re.findall(r"\b(cuFile\w+)\s*\(", header.read_text(errors="replace"))) | {"cuFileDriverClose_v2"}
    theirs = {name.split("@")[0] for kind, name in exported(arguments, library) if kind == "T"} & declared
    ours = {name for _, name in exported(arguments, arguments.library)}
    problems = sorted(theirs - ours) if theirs else ["NVIDIA's library seems to export nothing"]
    report.check(f"functions of NVIDIA's library of {version} that ours lacks ({len(theirs)} looked for)", problems)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("--header-folder", type=pathlib.Path, default=HERE.parent.parent / "include" / "cufile")
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, help="where NVIDIA's files are kept from one run to the next")
    parser.add_argument("--no-download", action="store_true")
    arguments = parser.parse_args()

    report = Report()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        cache = arguments.cache or folder / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        if shutil.which(arguments.cc) and shutil.which(arguments.cxx):
            check_compiles(arguments, report, folder)
            check_facts(arguments, report, folder)
        else:
            report.left_out("everything about the header", f"no compiler {arguments.cc} or {arguments.cxx}")
        if not arguments.library:
            report.left_out("everything about the library", "no --library")
        elif not (shutil.which(arguments.nm) and shutil.which(arguments.readelf)):
            report.left_out("everything about the library", f"no {arguments.nm} or {arguments.readelf}")
        else:
            check_library(arguments, report)
        if shutil.which(arguments.cc):
            for version in WHEELS:
                check_against_nvidia(arguments, report, folder, version, cache)
    print(f"{report.compared} comparisons, {report.failures} differ")
    if not report.compared:
        return SKIPPED
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
