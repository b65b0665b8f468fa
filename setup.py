"""What pyproject.toml cannot say: a wheel brings the data sets and trained models of `data/` along, inside `txlib`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithData(build_py):
    """Builds afresh, then puts `data/` into `txlib/embedded/`, each set with its licence and its source."""

    def run(self) -> None:
        if not self.editable_mode:  # nothing stays of files that were renamed since the last build
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:  # in a clone they are read where they are
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree("data", Path(self.build_lib) / "txlib" / "embedded", ignore=ignored)


setup(cmdclass={"build_py": WithData})
