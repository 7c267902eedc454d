"""DeepSpeed's gds op, which DeepSpeed builds itself, and its own tests of it."""

import os
import re

from harness import Client, Download, Failed, Needs, Place, Skipped, Source

DEBIAN = "https://deb.debian.org/debian/pool/main/liba/libaio"
PATHS = ("deepspeed", "accelerator", "csrc", "op_builder", "version.txt", "tests/conftest.py", "tests/pytest.ini", "tests/unit/__init__.py")
TESTS = ("tests/unit/common.py", "tests/unit/util.py", "tests/unit/v1/nvme/test_gds.py")
SOURCE = Source("deepspeedai/DeepSpeed", "edaa7221267243c7be7fb49c5d5f5c4fb97b4641", (*PATHS, *TESTS))
AIO = (
    Download(f"{DEBIAN}/libaio-dev_0.3.113-4_amd64.deb", "2d5a31e04e7471e71288832e004a8f8db78c2017ba11fa202f3e36e3ea21b2eb"),
    Download(f"{DEBIAN}/libaio1_0.3.113-4_amd64.deb", "d1476e4beab3d85f8a7d31de94c27472711ed3ef399ce70708e24b259426125b"),
)
PYDANTIC = ("pydantic==2.11.7", "pydantic-core==2.33.2", "annotated-types", "typing-inspection", "typing-extensions")
PACKAGES = ("einops", "hjson", "msgpack", "ninja", "psutil", "py-cpuinfo", "tqdm", "pytest", "pluggy", "iniconfig", "pygments", *PYDANTIC)
PROGRAMS = ("g++", "dpkg-deb")
NEEDS = Needs(bare=PACKAGES, archives=(SOURCE, *AIO), modules=("torch",), programs=PROGRAMS, machine="x86_64", toolkit=True, gpu=True, large=True)


def plain(output: str) -> str:
    """Removes the colours of DeepSpeed's pytest."""
    return re.sub(r"\x1b\[[0-9;]*m", "", output)


def run(place: Place, client: Client) -> str:
    folder = place.folder(client)
    home = place.cuda_home(client)
    tree = place.sources(client, SOURCE, folder / "DeepSpeed")
    if not (tree / "deepspeed/accelerator").exists():  # as DeepSpeed's setup.py does
        (tree / "deepspeed/accelerator").symlink_to("../accelerator")
    for library in AIO:
        place.build(client, ["dpkg-deb", "-x", place.file(client, library), folder / "libaio"], cwd=folder)
    libraries = next((folder / "libaio/usr/lib").glob("*-linux-gnu"))
    runtime = next((folder / "libaio").glob("**/libaio.so.1")).parent
    python, packages = place.python(client)
    tests = [python, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-o", "addopts=", f"--basetemp={place.data(client) / 'files'}"]
    try:
        output = place.run(
            client,
            [place.penstock, "run", "--", *tests, "-c", tree / "tests/pytest.ini", tree / "tests/unit/v1/nvme/test_gds.py"],
            library_path=f"{runtime}:{place.cuda_path(client)}",
            python_path=f"{packages}:{tree}:{tree}/tests",
            leaves=["local_cufile.json"],  # DeepSpeed writes it
            CUDA_HOME=str(home),
            CPATH=str(folder / "libaio/usr/include"),
            LIBRARY_PATH=f"{libraries}:{home}/lib64:{home}/lib64/stubs",
            PATH=f"{packages}/bin:{home}/bin:{os.environ['PATH']}",
            TORCH_CUDA_ARCH_LIST="",  # DeepSpeed rejects "9.0a"
            TORCH_EXTENSIONS_DIR=str(folder / "extensions"),
            PYTHONDONTWRITEBYTECODE="1",
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        )
    except Failed as problem:
        skipped = re.search(r"^SKIPPED.*", plain(str(problem)), re.MULTILINE)
        if str(problem).startswith("exit code 5") and skipped:  # pytest's, for "no test ran"
            raise Skipped(f"DeepSpeed skips its tests: {skipped[0]}") from None
        raise
    counts = re.search(r"(\d+) passed.*", plain(output))
    if not counts:
        raise Failed(f"no test passed\n{output}")
    return f"{output}\n{counts[0].strip(' =')}"
