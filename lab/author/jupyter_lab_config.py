"""What `txcourse lab --author` has otherwise: a lesson or a solution is two files, NN_name.py, the source, and
NN_name.ipynb, the same with outputs. Saving one updates the other. The notebooks in exercises/ have no such twin."""

c = get_config()  # noqa: F821

c.ServerApp.jpserver_extensions = {"jupyterlab_jupytext": True}
c.ContentsManager.formats = "notebooks///ipynb,notebooks///py:percent;solutions///ipynb,solutions///py:percent"
c.ContentsManager.notebook_metadata_filter = "-all"
c.ContentsManager.outdated_text_notebook_margin = float("inf")  # the source counts, whichever file is newer
c.KernelSpecManager.allowed_kernelspecs = set()  # any
c.ContentsManager.hide_globs = ["*.pyc", "__pycache__", "*.egg-info", ".DS_Store", "*~"]
