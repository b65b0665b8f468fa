"""The data sets and trained models of the course; `txlib.data` reads them."""
