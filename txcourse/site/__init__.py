"""The course as a static site, for a browser without a network: `python -m txcourse.site`, the same as `make site`.

The pages are made from the notebooks as they are shipped, outputs included; nothing is run. `stage` puts what Sphinx
reads into one folder, `docs/conf.py` configures Sphinx, and `checks` reads what came out.
"""
