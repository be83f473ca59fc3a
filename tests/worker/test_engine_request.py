"""What of a request changes no token, on its way to the engine."""

from __future__ import annotations

from typing import Any

import pytest
from headrace.engine import RequestOptions
from headrace.producers import GenerationRequest
from headrace.worker.engine_request import RequestTranslator

from ..engine.scripted import ScriptedModel, constant, scripted_engine


@pytest.mark.parametrize(
    "options", [{}, {"priority": 9}, {"tenant": "t"}, {"prefix_cache": False}, {"cache_salt": "s"}]
)
def test_how_a_request_is_treated_among_others(options: dict[str, Any]) -> None:
    translator = RequestTranslator(scripted_engine(ScriptedModel(constant(7))))
    translated = translator.translate(GenerationRequest.parse({"prompt": "hi", **options}))
    assert translated.options == RequestOptions(**options)
