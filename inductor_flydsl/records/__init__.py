"""The tuning store: what was measured, where, and under which versions.

Owns the on-disk form of tuning records. Knows nothing of how a kernel is compiled or measured.
"""

from .key import EnvironmentKey, FieldDiff, RecordKey, TargetKey, difference
from .record import NOT_MEASURED, Contest, Measurement, TuningRecord, choose, now_utc
from .store import ListedFile, Store

__all__ = [
    "NOT_MEASURED",
    "Contest",
    "EnvironmentKey",
    "FieldDiff",
    "ListedFile",
    "Measurement",
    "RecordKey",
    "Store",
    "TargetKey",
    "TuningRecord",
    "choose",
    "difference",
    "now_utc",
]
