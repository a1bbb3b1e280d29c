"""Names stretches of a program, so that InferScope's reports speak of them.

    from inferscope import scope

    with scope("llm_inference"):
        ...

It needs no privileges and no daemon: where nobody records, a scope does nothing.
"""

from ._report import ReportError, save_report
from ._scope import scope

__all__ = ["ReportError", "save_report", "scope"]
__version__ = "0.1.0"
