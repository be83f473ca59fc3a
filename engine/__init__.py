"""The engine: requests in, tokens out. Knows nothing of Redis, Celery, HTTP or files."""

from .config import EngineConfig
from .engine import Engine, EngineStats, RequestOutput
from .errors import ConfigError, EngineError, ModelError, RequestError
from .request import FinishReason
from .sampling_params import SamplingParams

__all__ = [
    "ConfigError",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "FinishReason",
    "ModelError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
]
