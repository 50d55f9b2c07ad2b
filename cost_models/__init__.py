"""The physics of training: what a layout costs in memory and time. Needs numpy only; names load on first use."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_models.calibrate import Calibration, Observation
    from cost_models.cluster import Cluster, Device, Link
    from cost_models.coefficients import DEFAULT_COEFFICIENTS, Coefficients
    from cost_models.estimate import Estimate, estimate
    from cost_models.explain import Term, explain
    from cost_models.layout import Layout, Layouts, Recompute
    from cost_models.memory import MemoryBreakdown
    from cost_models.shape import ModelShape, Norm, UnsupportedModelError
    from cost_models.step_time import StepTimeBreakdown
    from cost_models.workload import Framework, Precision, Workload

_HOMES = {
    "Calibration": "calibrate",
    "Cluster": "cluster",
    "Coefficients": "coefficients",
    "DEFAULT_COEFFICIENTS": "coefficients",
    "Device": "cluster",
    "Estimate": "estimate",
    "Framework": "workload",
    "Layout": "layout",
    "Layouts": "layout",
    "Link": "cluster",
    "MemoryBreakdown": "memory",
    "ModelShape": "shape",
    "Norm": "shape",
    "Observation": "calibrate",
    "Precision": "workload",
    "Recompute": "layout",
    "StepTimeBreakdown": "step_time",
    "Term": "explain",
    "UnsupportedModelError": "shape",
    "Workload": "workload",
    "estimate": "estimate",
    "explain": "explain",
}

__all__ = [
    "DEFAULT_COEFFICIENTS",
    "Calibration",
    "Cluster",
    "Coefficients",
    "Device",
    "Estimate",
    "Framework",
    "Layout",
    "Layouts",
    "Link",
    "MemoryBreakdown",
    "ModelShape",
    "Norm",
    "Observation",
    "Precision",
    "Recompute",
    "StepTimeBreakdown",
    "Term",
    "UnsupportedModelError",
    "Workload",
    "estimate",
    "explain",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cost_models' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"cost_models.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps ``cost_models.estimate`` and ``cost_models.explain`` the functions: importing the submodules of the same
    names would bind the modules over them. ``from cost_models.estimate import ...`` is not affected."""

    def __setattr__(self, name: str, value: Any) -> None:
        if _HOMES.get(name) == name and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
