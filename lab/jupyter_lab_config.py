"""JupyterLab as a learner sees it. `txcourse lab` reads this folder after your own settings and writes nothing."""

from pathlib import Path

from jupyter_core.paths import jupyter_config_dir

c = get_config()  # noqa: F821

c.LabApp.default_url = "/lab/tree/notebooks/00_start_here.ipynb"
c.ServerApp.jpserver_extensions = {"jupyterlab_jupytext": False}  # a notebook is one file, and always opens
c.KernelSpecManager.allowed_kernelspecs = {"python3"}  # not the grader's, which keeps nothing
c.ContentsManager.hide_globs = ["*.py", "*.pyc", "__pycache__", "*.egg-info", ".DS_Store", "*~"]
c.LabApp.custom_css = True  # the reader's own custom.css, where there is one, or else ours
styles = [f"{folder}/custom" for folder in (jupyter_config_dir(), Path(__file__).parent)]
c.ServerApp.tornado_settings = {"static_custom_path": styles}
c.ServerApp.allow_root = True  # in a container there is often no other user

# Ask for no news and no updates.
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.handlers.announcements.NeverCheckForUpdate"
