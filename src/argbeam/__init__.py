"""Train sequence models for the beam search that decodes them.

The public names are listed in `__init__.pyi`. Each is imported at its first use: torch takes seconds to import, and
`argbeam --help` does not need it.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
