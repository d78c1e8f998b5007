"""What pyproject.toml cannot say: the start-up files, which reach the child processes of a run.

Up to Python 3.17 a line of the .pth file is run at each start; from 3.15 on the .start file stands
in its place (PEP 829). Both cost a look into the environment where no run is on.
"""

import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

STARTUP = ("fmcheck-reach.pth", "fmcheck-reach.start")
HERE = Path(__file__).parent


class BuildPy(build_py):
    """Puts the start-up files beside the package in a wheel."""

    def run(self):  # noqa: D102
        super().run()
        if not self.editable_mode:
            for name in STARTUP:
                self.copy_file(str(HERE / "fmcheck" / "processes" / name), self.build_lib)

    def get_outputs(self, include_bytecode=1):  # noqa: D102
        made = [] if self.editable_mode else [str(Path(self.build_lib, name)) for name in STARTUP]
        return super().get_outputs(include_bytecode) + made


class EditableWheel(editable_wheel):
    """Puts them into the wheel that stands for an editable install."""

    def run(self):  # noqa: D102
        super().run()
        for wheel in Path(self.dist_dir).glob("*editable*.whl"):
            with zipfile.ZipFile(wheel, "a") as archive:
                for name in STARTUP:
                    archive.write(HERE / "fmcheck" / "processes" / name, name)


setup(cmdclass={"build_py": BuildPy, "editable_wheel": EditableWheel})
