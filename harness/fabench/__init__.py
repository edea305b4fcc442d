"""fabench: is this attention kernel right, and how fast is it, against everything else, on this GPU?"""

from __future__ import annotations

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case, Mask
from fabench.errors import FabenchError
from fabench.function_backend import backend

__version__ = "0.1.0"
__all__ = ["Backend", "Case", "FabenchError", "Facts", "Mask", "Prepared", "__version__", "backend"]
