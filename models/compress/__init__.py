"""Compresses models, with calibration, projection and budgets, and makes them dense again."""

from .compression import CalibrationData as CalibrationData
from .compression import CompressReport as CompressReport
from .compression import compress_model as compress_model
from .replacement import project_layer as project_layer
from .replacement import replace_layer as replace_layer
from .request import CompressRequest as CompressRequest
from .to_dense import bundle_to_dense as bundle_to_dense
from .to_dense import to_dense as to_dense
