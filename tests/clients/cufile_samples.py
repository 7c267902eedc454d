"""NVIDIA's samples of the cuFile API: 34 programs, which check their bytes themselves."""

import os
import pathlib
import re

from client import why_no_gpu
from harness import Client, Failed, Place, Source, check_used

SOURCE = Source("NVIDIA/MagnumIO", "48103b8d49b37e5f9e198da5a3135aea4231d654", ("gds/samples",))

# The number and the arguments of each sample, from the samples' README. A and B are two files of 128 MiB, 0 is the GPU, and 8 the size of a batch.
RUNS = """
001 A 0|002 A 0|003 A B 0|004 A B 0|005 A B 0|006 A B 0|007|008|009 A B|010 A 0 0|011 A 0 0|012 A B|013 A B|014 A B 0|015 A B 0 1|015 A B 0 2|
015 A B 0 3|016 A|017 A|018 A|019 A 0 8|019 A 0 8 1|020 A 0 8|020 A 0 8 1|021 A 0 8|021 A 0 8 1|022 A 0|022 A 0 1|023 A B|024 A|025 A B|026 A B|
027 A 0 8 0|027 A 0 8 1|028 A 0|029 A 0 8 1|030 A 0 8 0 1|030 A 0 8 1 1|031 A B 0|032 A B 0|033 A B 0|034 A B 0
""".replace("\n", "").split("|")

# These use the driver's contexts or virtual memory, or streams, so they need a GPU.
ONLY_ON_A_GPU = ("004", "023", "024", "025", "026", "031", "032", "033", "034")
READ_HALF_A_TERABYTE = ("012", "013")  # from files of 128 MiB; without a GPU, the files are smaller
WITH_A_KERNEL = ("023", "025", "026")
WITHOUT_TRANSFERS = ("007", "008")

# The samples are older than CUDA 13, whose cuCtxCreate has one more parameter.
OLDER_CUDA = """#include <cuda.h>
#if CUDA_VERSION >= 13000
#undef cuCtxCreate
#define cuCtxCreate(context, flags, device) cuCtxCreate_v4(context, nullptr, flags, device)
#endif
"""

# The parts of OpenSSL's headers that the samples use, for machines without them. The samples open libcrypto at run time.
OPENSSL = {
    "sha.h": "#pragma once\n#define SHA256_DIGEST_LENGTH 32\ntypedef struct SHA256_CTX { unsigned char opaque[112]; } SHA256_CTX;\n",
    "evp.h": "#pragma once\ntypedef struct evp_md_ctx_st EVP_MD_CTX;\ntypedef struct evp_md_st EVP_MD;\ntypedef struct engine_st ENGINE;\n",
}


def build(place: Place, client: Client, numbers: list[str]) -> pathlib.Path:
    """Builds a program for each number, and returns their folder."""
    folder = place.folder(client)
    home = place.cuda_home(client)
    tree = place.sources(client, SOURCE, folder / "MagnumIO") / "gds/samples"
    programs = folder / "programs"
    (programs / "openssl").mkdir(parents=True, exist_ok=True)
    (programs / "older_cuda.h").write_text(OLDER_CUDA)
    for name, text in OPENSSL.items():
        (programs / "openssl" / name).write_text(text)
    lines = ["all: " + " ".join(numbers)]
    include = f"-w -I{home}/include -include {programs}/older_cuda.h"
    link = f"{place.link_flags(client)} -lcufile -lcudart -lcuda -ldl -lpthread"
    for number in numbers:
        kernel = " vectorAdd.a" if number in WITH_A_KERNEL else ""
        source = f"{tree}/cufile_sample_{number}.{'cu' if number == '024' else 'cc'}"
        compiler = f"{home}/bin/nvcc -arch=native" if number == "024" else f"g++ -std=c++17 -idirafter {programs}"
        lines.append(f"{number}: {source}{kernel}\n\t{compiler} {include} $^ -o $@ {link}")
    lines.append(f"vectorAdd.a: {tree}/vectorAdd.cu\n\t{home}/bin/nvcc -arch=native --lib $< -o $@")
    (programs / "Makefile").write_text("\n".join(lines) + "\n")
    place.build(client, ["make", f"-j{place.jobs}"], cwd=programs)
    return programs


def run(place: Place, client: Client) -> str:
    runs = [each for each in RUNS if not why_no_gpu() or each[:3] not in ONLY_ON_A_GPU]
    programs = build(place, client, sorted({each[:3] for each in runs}))
    mib = os.urandom(1 << 20)
    lines = []
    for each in runs:
        number, *arguments = each.split()
        data = place.data(client)
        for name in ("A", "B"):
            (data / name).write_bytes(mib * (2 if number in READ_HALF_A_TERABYTE and why_no_gpu() else 128))
        output = place.run_program(client, [programs / number, *(data / word if word in ("A", "B") else word for word in arguments)])
        wrong = re.search(r"^(?!PASS).*(mismatch|error|fail).*", output, re.IGNORECASE | re.MULTILINE)
        if wrong:
            raise Failed(f"sample {each}: {wrong[0]}\n{output}")
        if number not in WITHOUT_TRANSFERS:
            check_used(output)
        lines.append(f"OK sample {each}")
    return "\n".join([*lines, f"{len(runs)} of {len(RUNS)} runs, {place.memory}"])
