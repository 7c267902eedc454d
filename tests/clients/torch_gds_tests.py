#!/usr/bin/env python3
"""PyTorch's own tests of torch.cuda.gds, from its test/test_cuda.py, on whatever file system the folder for temporary files has.

PyTorch skips these tests in its builds, and on other file systems than ext4 and XFS. This runs them without these two conditions, and unchanged
otherwise.

Usage: penstock run -- python3 torch_gds_tests.py TEST_CUDA FOLDER [LIBRARY]
TEST_CUDA: PyTorch's test/test_cuda.py. FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import ast
import os
import pathlib
import re
import sys
import tempfile
import unittest

from client import check_library, fail, ok, skip, why_no_gpu


def gds_tests(source: str) -> tuple[list[ast.stmt], list[ast.ClassDef]]:
    """The imports of the module, and its classes with tests of GPUDirect Storage, without their reasons to skip."""
    module = ast.parse(source)
    classes = [
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and any(isinstance(each, ast.FunctionDef) and each.name.startswith("test_gds") for each in node.body)
    ]
    for each in classes:
        each.decorator_list = []
        others = [node for node in each.body if isinstance(node, ast.FunctionDef) and re.match("test_(?!gds)", node.name)]
        each.body = [node for node in each.body if node not in others]
        for function in each.body:
            if isinstance(function, ast.FunctionDef):
                function.decorator_list = [word for word in function.decorator_list if "skip" not in ast.unparse(word)]
                if function.name == "_get_tmp_dir_fs_type":
                    function.body = ast.parse("return 'ext4'").body
    return [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))], classes


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: torch_gds_tests.py TEST_CUDA FOLDER [LIBRARY]")
    imports, classes = gds_tests(pathlib.Path(sys.argv[1]).read_text())
    if not classes:
        skip("this test_cuda.py has no tests of GPUDirect Storage")
    missing = why_no_gpu()
    if missing:
        skip(f"torch.cuda.gds needs a GPU: {missing}")
    tempfile.tempdir = os.environ["TMPDIR"] = sys.argv[2]
    names: dict[str, object] = {"__name__": "test_cuda"}
    for node in imports:
        try:
            exec(compile(ast.Module([node], []), "test_cuda.py", "exec"), names)
        except ImportError as problem:  # of another test, or of another version of PyTorch
            print(f"left out: {problem}")
    exec(compile(ast.Module(list(classes), []), "test_cuda.py", "exec"), names)
    tests = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(names[each.name]) for each in classes)  # type: ignore[arg-type]
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(tests)
    if result.skipped:
        fail(f"skipped: {result.skipped[0][1]}")
    if not result.wasSuccessful() or not result.testsRun:
        fail(f"{len(result.failures) + len(result.errors)} of {result.testsRun} tests failed")
    check_library(sys.argv[3] if len(sys.argv) == 4 else None)
    ok(f"{result.testsRun} of {result.testsRun} tests")


if __name__ == "__main__":
    main()
