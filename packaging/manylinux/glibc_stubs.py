"""Makes a folder of link-time stand-ins for glibc, with which this machine's own compiler builds for an older glibc.

A program binds each function of glibc at the newest version that the linker sees. Here the linker sees those of this machine's glibc that
were there in the older one, and no others: the stand-ins have the same names and versions and no code. What has moved between
glibc's libraries since (threads and dlopen, into libc.so.6 with 2.34) stands in the library that it was in. Calls that came later and
that our code or libstdc++ makes are in compat.a, which is built from compat_*.c beside this file.

As a program it says whether what was linked without the stand-ins could be linked with them: whether each function that it asks
this machine's glibc for was in the older one, or has one of ours in its place. Usage: glibc_stubs.py FILE...
Exit status: 0 it could; 1 it could not, and each function that stands in the way is named; 77 not with glibc on x86-64 or aarch64, so not asked.
A compiler for the other of the two, such as aarch64-linux-gnu-gcc, makes stand-ins for its own glibc.

libstdc++ is to be linked in (-static-libstdc++): the system's may be older. libgcc_s.so.1 is not: its interface has long not changed, and
exceptions need one copy per process.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
LIMIT = (2, 28)  # the glibc that the wheels are for
LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")


class Target(NamedTuple):
    loader: str
    oldest: tuple[int, ...]  # its glibc's first version


TARGETS = {"x86_64": Target("ld-linux-x86-64.so.2", (2, 2, 5)), "aarch64": Target("ld-linux-aarch64.so.1", (2, 17))}


def architecture_of(compiler: str) -> str:
    return subprocess.run([compiler, "-dumpmachine"], check=True, capture_output=True, text=True).stdout.split("-")[0]


def target_of(compiler: str) -> Target:
    architecture = architecture_of(compiler)
    if architecture not in TARGETS:
        raise FileNotFoundError(f"{compiler} is for {architecture}; this works with glibc on {' and '.join(TARGETS)} only")
    return TARGETS[architecture]


def tool(name: str, compiler: str) -> str:
    """A program of the compiler's binutils: those of this machine do not read another's objects."""
    return subprocess.run([compiler, f"-print-prog-name={name}"], check=True, capture_output=True, text=True).stdout.strip()


# Where the names that are in libc.so.6 since 2.32 or later were before. Those of libresolv, libutil and libanl are left out: a use of
# one fails to link, which is better than a library that is not loaded.
MOVED = (
    (re.compile(r"(pthread_|sem_|__pthread_|thrd_|mtx_|cnd_|tss_|call_once)"), "libpthread.so.0"),
    (re.compile(r"(dlopen|dlmopen|dlclose|dlsym|dlvsym|dlerror|dladdr1?|dlinfo)$"), "libdl.so.2"),
    (re.compile(r"(aio_|lio_listio|mq_|shm_|timer_)"), "librt.so.1"),
    (re.compile(r"(res_|__res_|ns_|__ns_|dn_|__dn_|__b64_|__p_|gai_|getaddrinfo_a|openpty|forkpty|log(in|out|wtmp))"), None),
)
# Ours stands in front of it (compat_start.c), and calls it by its version.
WRAPPED = {"__libc_start_main"}

ASKED_FOR = re.compile(r"^\s*\d+: .* UND (\w+)@GLIBC_([\d.]+)")
SYMBOL = re.compile(r"^\s*\d+: ([0-9a-f]+)\s+(\d+) (\w+)\s+(\w+)\s+\w+\s+(\w+) (\w+)@@?GLIBC_([\d.]+)$")


class Symbol(NamedTuple):
    name: str
    version: tuple[int, ...]
    kind: str  # FUNC, IFUNC, OBJECT or TLS
    binding: str  # GLOBAL or WEAK
    address: int
    size: int


class Offer(NamedTuple):
    symbol: Symbol
    is_default: bool


def installed(library: str, compiler: str) -> Path:
    """The library of this machine that stands behind the name."""
    told = subprocess.run([compiler, f"-print-file-name={library}"], check=True, capture_output=True, text=True).stdout.strip()
    if not Path(told).is_absolute():
        raise FileNotFoundError(f"{library}: {compiler} knows of none; this works with glibc only")
    return Path(told)


def symbols(library: Path) -> list[Symbol]:
    told = subprocess.run(["readelf", "--dyn-syms", "--wide", str(library)], check=True, capture_output=True, text=True).stdout
    found = []
    for line in told.splitlines():
        match = SYMBOL.match(line)
        if match and match[5] != "UND" and match[3] in ("FUNC", "IFUNC", "OBJECT", "TLS"):
            version = tuple(int(part) for part in match[7].split("."))
            found.append(Symbol(match[6], version, match[3], match[4], int(match[1], 16), int(match[2])))
    return found


def home(library: str, name: str, newest: tuple[int, ...], limit: tuple[int, ...]) -> str | None:
    """Which library held the name in the older glibc."""
    if library == "libc.so.6" and newest > limit:
        for pattern, moved_from in MOVED:
            if pattern.match(name):
                return moved_from
    return library


def offers(limit: tuple[int, ...], compiler: str) -> dict[str, list[Offer]]:
    """What each library is to offer: all that this machine's glibc has of versions up to the limit."""
    libraries = (*LIBRARIES, target_of(compiler).loader)
    offered: dict[str, list[Offer]] = {library: [] for library in libraries}
    for library in libraries:
        of_name: dict[str, list[Symbol]] = {}
        for symbol in symbols(installed(library, compiler)):
            of_name.setdefault(symbol.name, []).append(symbol)
        for name, versions in of_name.items():
            old = [each for each in versions if each.version <= limit]
            where = home(library, name, max(each.version for each in versions), limit)
            if not old or where is None:
                continue
            latest = max(each.version for each in old)
            offered[where] += [Offer(each, each.version == latest and name not in WRAPPED) for each in old]
    return offered


def assembly(offered: list[Offer]) -> str:
    """The stand-in's source. Names of one object stay names of one object, and weak ones weak: where a program has a copy of it, as of
    environ, the linker gives the copy all of the names."""
    lines = [".text"]
    labels: dict[tuple[str, int], str] = {}
    for number, (symbol, is_default) in enumerate(offered):
        version = "GLIBC_" + ".".join(map(str, symbol.version))
        label = f"stub_{number}"
        section = {"OBJECT": ".data", "TLS": '.section .tbss,"awT",@nobits'}.get(symbol.kind, ".text")
        kind = {"OBJECT": "object", "TLS": "tls_object"}.get(symbol.kind, "function")
        first = labels.setdefault((kind, symbol.address), label) if kind != "function" else label
        lines += [section, f".{'weak' if symbol.binding == 'WEAK' else 'globl'} {label}", f".type {label}, @{kind}"]
        if first == label:
            lines += [".balign 32", f"{label}:", f".skip {max(symbol.size, 1) if kind != 'function' else 1}"]
        else:
            lines.append(f".set {label}, {first}")
        if kind != "function":
            lines.append(f".size {label}, {symbol.size}")
        lines.append(f".symver {label}, {symbol.name}{'@@' if is_default else '@'}{version}")
    return "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])


def make_library(folder: Path, library: str, offered: list[Offer], compiler: str) -> None:
    versions = sorted({each.symbol.version for each in offered}) or [target_of(compiler).oldest]
    nodes = [f"GLIBC_{'.'.join(map(str, version))} {{ {'local: stub_*; ' if version == versions[0] else ''}}};" for version in versions]
    source, script = folder / f"{library}.s", folder / f"{library}.map"
    source.write_text(assembly(offered))
    script.write_text("\n".join(nodes) + "\n")
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
    subprocess.run([compiler, *options, str(source), "-o", str(folder / library)], check=True)


def make_compat(folder: Path, compiler: str) -> Path:
    objects = []
    for source in sorted(HERE.glob("compat_*.c")):
        made = folder / f"{source.stem}.o"
        options = ["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([compiler, *options, "-c", str(source), "-o", str(made)], check=True)
        objects.append(str(made))
    archive = folder / "libpenstock_compat.a"
    archive.unlink(missing_ok=True)
    subprocess.run([tool("ar", compiler), "rcs", str(archive), *objects], check=True)
    return archive


def calls_of_ours(compiler: str) -> set[str]:
    """What the archive beside the stand-ins gives."""
    with tempfile.TemporaryDirectory() as folder:
        archive = make_compat(Path(folder), compiler)
        told = subprocess.run([tool("nm", compiler), "--defined-only", "--extern-only", str(archive)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in told.splitlines() if len(line.split()) == 3}


def newer(binary: Path, limit: tuple[int, ...]) -> dict[str, str]:
    """The functions that a program or library binds at a version above the limit, each with that version."""
    told = subprocess.run(["readelf", "--dyn-syms", "--wide", str(binary)], check=True, capture_output=True, text=True).stdout
    found = [match.groups() for match in map(ASKED_FOR.match, told.splitlines()) if match]
    return {name: version for name, version in found if tuple(map(int, version.split("."))) > limit}


def complaints(binaries: list[Path], limit: tuple[int, ...] = LIMIT, compiler: str = "gcc") -> list[str]:
    """For each function that keeps a binary from being linked with the stand-ins, who asks for it."""
    given = {each.symbol.name for offered in offers(limit, compiler).values() for each in offered} | calls_of_ours(compiler)
    oldest = ".".join(map(str, limit))
    return [
        f"{binary.name}: {name} is in glibc {version} and newer; wheels are for {oldest}: packaging/manylinux/compat_calls.c needs one of its own"
        for binary in binaries
        for name, version in sorted(newer(binary, limit).items())
        if name not in given
    ]


def make(folder: Path, limit: tuple[int, ...], compiler: str = "gcc") -> list[str]:
    """Fills the folder, and returns the linker flags with which the compiler uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    for library, offered in offers(limit, compiler).items():
        make_library(folder, library, offered, compiler)
    make_compat(folder, compiler)
    at_need = " ".join(str(folder / each) for each in ("libpthread.so.0", "libdl.so.2", "librt.so.1", target_of(compiler).loader))
    nonshared = installed("libc_nonshared.a", compiler)
    script = f"GROUP ( {folder}/libpenstock_compat.a {folder}/libc.so.6 {nonshared} AS_NEEDED ( {at_need} ) )\n"
    (folder / "libc.so").write_text(script)
    (folder / "libm.so").write_text(f"GROUP ( {folder}/libm.so.6 )\n")
    for name, library in (("pthread", "libpthread.so.0"), ("dl", "libdl.so.2"), ("rt", "librt.so.1")):
        (folder / f"lib{name}.so").write_text(f"INPUT ( AS_NEEDED ( {folder}/{library} ) )\n")
    # libgcc_s.so.1 asks for names of this machine's glibc, which the stand-ins lack.
    return [f"-L{folder}", "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,--allow-shlib-undefined"]


def main(binaries: list[str]) -> int:
    if platform.machine() not in TARGETS or platform.libc_ver()[0] != "glibc":
        print("glibc_stubs: skipped: wheels are made with glibc on x86-64 and aarch64 only")
        return 77
    found = complaints([Path(each) for each in binaries])
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
