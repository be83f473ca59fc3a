"""Many jobs from one asyncio program: submit them together, take each answer as soon as it is there.

    python examples/async_client.py

Needs a worker (``headrace worker``) and, where its Redis is not on this machine, HEADRACE_REDIS_URL.
"""

from __future__ import annotations

import asyncio

from headrace.producers import AsyncClient, JobResult

CITIES = ("Lisbon", "Kraków", "Nairobi", "Osaka", "Montevideo")


async def main() -> None:
    """Ask about each city and print the answers in the order in which they end."""
    async with AsyncClient() as client:
        prompts = [f"Say one thing about the city of {city}, in one sentence." for city in CITIES]
        job_ids = await client.submit_many(prompts, max_tokens=40, temperature=0)
        city_of = dict(zip(job_ids, CITIES, strict=True))

        async def answer(job_id: str) -> JobResult:
            return await client.result(job_id, timeout=120)

        for next_answer in asyncio.as_completed([answer(job_id) for job_id in job_ids]):
            result = await next_answer
            text = result.text if result.error is None else f"({result.error.message})"
            print(f"{city_of[result.job_id]}: {' '.join(text.split())}")


if __name__ == "__main__":
    asyncio.run(main())
