"""The engine: requests in, tokens out. Knows nothing of Redis, Celery, HTTP or files."""

from .config import EngineConfig
from .engine import Engine
from .errors import ConfigError, EngineError, ModelError, RequestError
from .outputs import EngineStats, RequestOptions, RequestOutput, TokenLogprob
from .request import FinishReason
from .sampling_params import SamplingParams
from .structure import Structure
from .tenants import Tenant

__all__ = [
    "ConfigError",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "FinishReason",
    "ModelError",
    "RequestError",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "Structure",
    "Tenant",
    "TokenLogprob",
]
