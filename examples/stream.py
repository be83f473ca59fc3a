"""Queue one job and print its tokens as they come.

    python examples/stream.py "Tell me a story about a mill."

Needs a worker (``headrace worker``) and, where its Redis is not on this machine, HEADRACE_REDIS_URL.
"""

from __future__ import annotations

import sys

from headrace.producers import Client, Delta, Finished, Reset


def main(prompt: str) -> int:
    """Stream one answer; returns the exit code."""
    with Client() as client:
        job_id = client.submit(prompt, max_tokens=80, temperature=0.7, seed=7)
        print(f"job {job_id}", file=sys.stderr)
        for event in client.stream(job_id, timeout=120):
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)
            elif isinstance(event, Reset):
                # A worker was lost, and another one starts the answer again.
                print("\n--- from the beginning ---", file=sys.stderr)
            elif isinstance(event, Finished):
                result = event.result
                print(
                    f"\n{result.state.value}: {result.completion_tokens} tokens in {result.total_seconds:.2f} s, "
                    f"the first after {result.ttft_seconds:.2f} s",
                    file=sys.stderr,
                )
                return 0 if result.error is None else 1
    return 1


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:]) or "Tell me a short story about a water mill."))
