"""Import this before nbformat, and nbformat comes a second and a half sooner.

It validates by jsonschema, which builds a grammar of web addresses where it finds this package. No notebook needs it.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
