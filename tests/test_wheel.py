"""The built wheel, used from an empty folder, behaves as the checkout does."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import toydepth


@pytest.mark.slow
def test_an_installed_wheel_works_from_an_empty_folder(tmp_path):
    root = Path(toydepth.__file__).parents[1]
    if not (root / "pyproject.toml").exists():
        pytest.skip("not a checkout")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(root)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    # The base interpreter does not see the checkout's editable install, only the unpacked wheel and its dependencies
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'installed'}{os.pathsep}{packages}"}
    (tmp_path / "empty").mkdir()
    words = ["+sweeps=alpha_quick", "train.steps=20", "train.batch=64", "student.depth=2,4", "seed=0,1"]
    command = [sys._base_executable, "-m", "toydepth", "run", *words]  # type: ignore[attr-defined]
    done = subprocess.run(command, cwd=tmp_path / "empty", env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "empty/outputs/alpha_quick/runs").iterdir())) == 8
    where = subprocess.run(
        [sys._base_executable, "-c", "import toydepth; print(toydepth.__file__)"],  # type: ignore[attr-defined]
        cwd=tmp_path / "empty", env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert str(tmp_path / "installed") in where.stdout
