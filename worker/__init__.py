"""The worker: takes jobs from Redis, runs them in the engine, and publishes what comes out."""
