"""KvikIO's C++ examples, which check their bytes themselves, on the libkvikio of its wheel, with its defaults and with its compatibility mode off."""

import pathlib

from client import why_no_gpu
from harness import Client, Failed, Place, Skipped, Source, check_used

SOURCE = Source("rapidsai/kvikio", "2365a19961a5d4099273f3b52adf5dd20aa0c01a", ("cpp/examples",))
DEFINED = ("KVIKIO_LIBCURL_FOUND", "KVIKIO_CUFILE_FOUND", "KVIKIO_CUFILE_VERSION_API_FOUND")  # by the CMake target of the wheel
EXAMPLES = ("basic_io", "basic_no_cuda")


def run(place: Place, client: Client) -> str:
    folder = place.folder(client)
    home = place.cuda_home(client)
    tree = place.sources(client, SOURCE, folder / "kvikio") / "cpp/examples"
    packages = pathlib.Path(place.python(client)[1])
    libraries = [packages / "libkvikio/lib64", packages / "rapids_logger/lib64"]
    include = [f"-I{path}" for path in (packages / "libkvikio/include", packages / "rapids_logger/include", home / "include")]
    flags = ["g++", "-std=c++20", "-w", *(f"-D{name}" for name in DEFINED), *include]
    link = [*(f"-L{path}" for path in libraries), "-lkvikio", f"-L{home}/lib64", "-lcudart", "-lpthread", "-ldl"]
    for example in EXAMPLES:
        place.build(client, [*flags, tree / f"{example}.cpp", "-o", folder / example, *link, "-Wl,--allow-shlib-undefined"], cwd=folder)
    missing = why_no_gpu()
    if missing:
        raise Skipped(f"built; KvikIO needs the CUDA driver: {missing}")
    path = ":".join([*map(str, libraries), place.cuda_path(client)])
    lines = []
    for example in EXAMPLES:
        for mode in ({}, {"KVIKIO_COMPAT_MODE": "OFF"}):
            output = place.run(client, [place.penstock, "run", "--log", "summary", "--", folder / example], library_path=path, **mode)
            for left in pathlib.Path("/tmp").glob("test-file*"):  # a fixed name of the examples
                left.unlink()
            if "Compatibility mode: disabled" not in output:
                raise Failed(f"{example} {mode}: KvikIO did not use cuFile\n{output}")
            if example == "basic_io":
                check_used(output)
            lines.append(f"OK {example} {mode or 'with its defaults'}")
    return "\n".join([*lines, f"{len(lines)} of {len(lines)} runs, {place.memory}"])
