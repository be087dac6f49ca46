"""What is said when pyverbs is not to be had: by real interpreters and real loaders, not by crafted errors."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKER = runpy.run_path(str(ROOT / "tools/link-pyverbs"))
SUFFIX = ".cpython-311-x86_64-linux-gnu.so"


def said(*folders: Path) -> str:
    """What `load` says in an interpreter that finds packages in `folders` and nowhere else."""
    script = (
        f"import sys; sys.path[:0] = {[str(ROOT), *map(str, folders)]!r}\n"
        "from rdma import verbs\n"
        "try: verbs.load()\n"
        "except verbs.VerbsError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_missing_package_is_one_sentence_with_the_way_out() -> None:
    text = said()
    assert "python3-pyverbs" in text and "tools/link-pyverbs" in text
    assert "\n" not in text


def test_modules_for_another_python_are_told_from_a_missing_package(tmp_path: Path) -> None:
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs/__init__.py").touch()
    assert said(tmp_path).startswith("pyverbs is built for another Python than this one (3.")


def test_any_other_failure_of_an_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs/__init__.py").write_text("raise ImportError('half installed')")
    assert said(tmp_path).startswith("pyverbs does not load (half installed): apt-get install --reinstall")


def place(folder: Path, suffix: str) -> tuple[Path, Path]:
    source, site = folder / "dist/pyverbs", folder / "site"
    source.mkdir(parents=True)
    site.mkdir()
    (source / f"device{suffix}").touch()
    return source, site


def test_the_link_is_made_once(tmp_path: Path) -> None:
    source, site = place(tmp_path, SUFFIX)
    assert LINKER["link"](source, site, SUFFIX) == f"linked {source} into {site}"
    assert (site / "pyverbs").resolve() == source
    assert LINKER["link"](source, site, SUFFIX) == ""


def test_another_pythons_modules_are_not_linked_and_an_old_link_to_them_goes(tmp_path: Path) -> None:
    source, site = place(tmp_path, SUFFIX)
    LINKER["link"](source, site, SUFFIX)
    text = LINKER["link"](source, site, ".cpython-399-x86_64-linux-gnu.so")
    assert "is for cpython-311-x86_64-linux-gnu.so, this Python wants cpython-399-" in text
    assert not (site / "pyverbs").is_symlink()
    assert LINKER["link"](source, site, ".cpython-399-x86_64-linux-gnu.so") == text


def test_a_package_that_is_not_the_distributions_stays(tmp_path: Path) -> None:
    source, site = place(tmp_path, SUFFIX)
    (site / "pyverbs").mkdir()
    assert "pip uninstall pyverbs" in LINKER["link"](source, site, SUFFIX)
    assert (site / "pyverbs").is_dir()


def test_without_the_package_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    text = LINKER["link"](tmp_path / "none", tmp_path / "site", SUFFIX)
    assert text == "verbs are not available: apt-get install python3-pyverbs, then make setup"
