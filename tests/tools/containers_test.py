"""Tests that docs/guides/containers.md shows the files of packaging/, and that these are well-formed and build from this tree.

Usage: containers_test.py
"""

from __future__ import annotations

import json
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guides/containers.md").read_text()
DOCKERFILE = ROOT / "packaging/docker/Dockerfile"
IGNORED = DOCKERFILE.with_name("Dockerfile.dockerignore")
POD = ROOT / "packaging/kubernetes/pod.yaml"
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD"}


def block(language: str) -> str:
    """The only code block of the page in that language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, f"the page has {len(blocks)} {language} blocks"
    return blocks[0]


def instructions() -> list[str]:
    """Those of the Dockerfile, one line each."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    return [line for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines() if line.strip()]


class Containers(unittest.TestCase):
    def test_the_page_shows_the_files(self) -> None:
        self.assertEqual(block("dockerfile"), DOCKERFILE.read_text())
        self.assertEqual(block("yaml"), POD.read_text())

    def test_the_dockerfile_has_known_instructions_and_ends_as_a_user(self) -> None:
        words = [line.split()[0] for line in instructions()]
        self.assertLessEqual(set(words), INSTRUCTIONS)
        self.assertEqual(words[0], "FROM")
        users = [line.split()[1] for line in instructions() if line.startswith("USER ")]
        self.assertNotIn(users[-1], ("0", "root"))

    def test_the_build_installs_the_headers_that_setup_installs(self) -> None:
        setup = set(re.search(r"^packages=\((.*)\)$", (ROOT / "tools/setup").read_text(), re.MULTILINE).group(1).split())  # type: ignore[union-attr]
        build = next(line for line in instructions() if line.startswith("RUN apt-get"))
        packages = set(build.split("--no-install-recommends")[1].split())
        self.assertLessEqual(packages, setup)
        for header in ("g++", "libcli11-dev", "liburing-dev", "libucx-dev", "libxxhash-dev"):
            self.assertIn(header, packages)

    def test_the_build_context_has_what_the_build_reads(self) -> None:
        sent = {line[1:] for line in IGNORED.read_text().splitlines() if line.startswith("!")}
        for name in sent:
            self.assertTrue((ROOT / name).exists(), f"{IGNORED.name} names {name}, which is not here")
        named = re.search(r"^sdist.include = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        self.assertIsNotNone(named)
        folders = set(re.findall(r'"/?([^"]+)"', named.group(1)))  # type: ignore[union-attr]
        self.assertLessEqual(folders | {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "NOTICE", "README.md", "pyproject.toml"}, sent)

    def test_the_pod_is_a_pod_that_runs_without_privileges(self) -> None:
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed")
        pod = yaml.safe_load(POD.read_text())
        self.assertEqual((pod["apiVersion"], pod["kind"]), ("v1", "Pod"))
        self.assertTrue(pod["spec"]["securityContext"]["runAsNonRoot"])
        (container,) = pod["spec"]["containers"]
        self.assertFalse(container["securityContext"]["allowPrivilegeEscalation"])
        self.assertIn("nvidia.com/gpu", container["resources"]["limits"])
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)

    def test_the_pod_is_valid_where_a_validator_is_installed(self) -> None:
        try:
            import kubernetes_validate  # noqa: F401
        except ImportError:
            self.skipTest("kubernetes-validate is not installed")
        ended = subprocess.run(["kubernetes-validate", "--strict", str(POD)], capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def test_the_devcontainer_sets_the_limits_of_the_page(self) -> None:
        arguments = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())["runArgs"]
        self.assertEqual(arguments, ["--ulimit", "memlock=-1", "--shm-size=2g"])
        for text in ("--ulimit memlock=-1", "--shm-size=2g"):
            self.assertIn(text, PAGE)

    def test_the_pod_sets_variables_that_exist(self) -> None:
        known = set(re.findall(r'"(PENSTOCK_[A-Z_]+)"', (ROOT / "src/core/config.cc").read_text()))
        self.assertLessEqual(set(re.findall(r"PENSTOCK_[A-Z_]+", POD.read_text())), known)


if __name__ == "__main__":
    unittest.main()
