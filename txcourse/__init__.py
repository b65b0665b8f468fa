"""The course: what its lessons use, how they are built, and JupyterLab on it."""
